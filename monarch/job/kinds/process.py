"""An allocation of local processes: each is a host of its own, with its own workspace folder.

It behaves as a cluster on one machine. The host agents outlive the program that started them.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from monarch.actor import attach_to_workers
from monarch.config import runtime_dir
from monarch.errors import JobError
from monarch.job.job import JobState, JobTrait
from monarch.net.identifiers import new_secret, new_uid
from monarch.ours import NotOurs
from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent, client
from monarch.runtime.ends.process_group import signal_process
from monarch.runtime.ends.process_start import is_ours, process_start
from monarch.runtime.hosts.agent_process import AGENT_PROGRAM, start_agent
from monarch.runtime.hosts.directory import (
    check_job_directory,
    make_job_directory,
    remove_job_directory,
    sweep,
)
from monarch.runtime.uninterrupted import Uninterrupted

_TERM_SECONDS = 2.0
_STATUS_SECONDS = 1.0
_TAIL_LINES = 5

# The agents that this program has started: only the parent of a process gets its status.
_started_here: dict[int, subprocess.Popen[bytes]] = {}


class HostProcess(NamedTuple):
    """A host agent's process. ``started`` is its start time, which tells it from a later process
    with the same pid."""

    mesh: str
    url: str
    pid: int
    started: int
    workspace: str
    log: str

    @property
    def channel(self) -> str:
        """Return ``url``, under the name that PyTorch's Monarch gives it."""
        return self.url

    @property
    def name(self) -> str:
        """Return the host's own name, which is that of its folder."""
        return os.path.basename(os.path.dirname(self.log))

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return is_ours(self.pid, self.started, *self.words)

    @property
    def words(self) -> tuple[str, str]:
        """Return two words that are on this process's command line, and on no other's."""
        return AGENT_PROGRAM, self.url

    def how_ended(self) -> str:
        """Return how the host ended, if this program started it, and the last lines of its log."""
        try:
            with open(self.log, encoding="utf-8", errors="replace") as file:
                lines = "".join(file.readlines()[-_TAIL_LINES:]).rstrip()
        except FileNotFoundError:
            lines = ""  # The folder was removed.
        tail = f"; the last lines of {self.log}:\n{lines}" if lines else ""
        return f"{self.name} (pid {self.pid}) {_status_words(self.pid)}{tail}"


class ProcessJob(JobTrait):
    """Hosts that are processes of this machine, as in ``ProcessJob({"trainers": 2})``. ``meshes``
    has the number of hosts by mesh name.

    ``env`` is added to the hosts' environment. ``preload`` names modules (``["torch"]``) that
    each host imports ahead, so that its procs have them at once.
    """

    kind = "process"

    def __init__(
        self,
        meshes: dict[str, int],
        env: dict[str, str] | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        super().__init__()
        if not meshes or any(num < 1 for num in meshes.values()):
            raise ValueError(f"every mesh needs at least one host, got {meshes}")
        self.meshes = dict(meshes)
        self.env = dict(env or {})
        self.preload = tuple(preload)
        self.hosts: list[HostProcess] = []
        self._secret = b""
        self._directory = ""
        self._children: list[subprocess.Popen[bytes]] = []

    @property
    def _host_to_pid(self) -> dict[str, HostProcess]:
        """Return the hosts by the names that PyTorch's Monarch gives them, such as ``trainers_0``.

        Programs read their ``pid``.
        """
        of_mesh = {mesh: [host for host in self.hosts if host.mesh == mesh] for mesh in self.meshes}
        return {
            f"{mesh}_{index}": host
            for mesh, hosts in of_mesh.items()
            for index, host in enumerate(hosts)
        }

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise JobError("a ProcessJob runs no client script; run the script itself")
        self._secret = new_secret()
        self._directory = make_job_directory(new_uid())
        try:
            for mesh, num_hosts in self.meshes.items():
                for index in range(num_hosts):
                    self.hosts.append(self._start(mesh, f"{mesh}{index}"))
        except BaseException:
            self._kill()
            raise

    def _start(self, mesh: str, name: str, replaced: HostProcess | None = None) -> HostProcess:
        """Start a host agent, and return its process.

        If it replaces the agent ``replaced``, it gets that agent's workspace, and continues its
        log.
        """
        folder = os.path.join(self._directory, name)
        if replaced is None:
            os.mkdir(folder, 0o700)
        url = f"ipc://{folder}/host"
        log = os.path.join(folder, "host.log")
        env = {**os.environ, **self.env}
        workspace = env.setdefault("WORKSPACE_DIR", f"{folder}/workspace")
        if sum(self.meshes.values()) > 1 and "WORKSPACE_DIR" in os.environ | self.env:
            # Two hosts must not share one folder.
            workspace = env["WORKSPACE_DIR"] = os.path.join(workspace, name)
        if replaced is not None:
            workspace = env["WORKSPACE_DIR"] = replaced.workspace
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{folder}/host")
        with open(log, "wb" if replaced is None else "ab") as output:
            child = start_agent(
                url, name, secret=self._secret.hex(), env=env, stdout=output, stderr=output
            )
        self._children.append(child)
        _started_here[child.pid] = child
        started = process_start(child.pid) or 0
        return HostProcess(
            mesh=mesh, url=url, pid=child.pid, started=started, workspace=workspace, log=log
        )

    def _state(self) -> JobState:
        hosts = {}
        for mesh in self.meshes:
            urls = [host.url for host in self.hosts if host.mesh == mesh]
            for url in urls:
                client().expect_process(url, functools.partial(self._process_at, url))
            hosts[mesh] = attach_to_workers(ca=None, workers=urls, name=mesh)
            if self.preload:
                hosts[mesh].preload(self.preload)
        return JobState(hosts)

    def _process_at(self, url: str) -> HostProcess | None:
        """Return the agent at ``url``; ``None`` if no host has this URL.

        If its process has ended, return the process that another program has put in its place, if
        any.
        """
        host = self._find(url)
        if host is not None and not host.is_running:
            self._reread()
            host = self._find(url)
        return host

    def _find(self, url: str) -> HostProcess | None:
        return next((host for host in self.hosts if host.url == url), None)

    def _reread(self) -> None:
        """Read the hosts' current processes from the kept state."""
        job = self._noted()
        if isinstance(job, ProcessJob):
            self.hosts = job.hosts

    def repair(self) -> list[str]:
        """Restart hosts that have ended, at their addresses; return their names.

        Raises ``JobError`` if the allocation was ended.
        """
        if not os.path.isdir(self._directory):
            raise JobError("the allocation has been ended: bring one up with `monarch apply`")
        self._check_ours("started")
        with Uninterrupted(), _locked(self._directory):
            self._reread()
            ended = [host for host in self.hosts if not host.is_running]
            for host in ended:
                self.hosts[self.hosts.index(host)] = self._start(host.mesh, host.name, host)
                if (child := _started_here.pop(host.pid, None)) is not None:
                    child.wait()
            if ended and self._state_path is not None:
                self.dump(self._state_path)
            return [host.name for host in ended]

    def running_urls(self) -> list[str]:
        """Return the URLs of the hosts with a running process."""
        return [host.url for host in self.hosts if host.is_running]

    def _is_running(self) -> bool:
        return bool(self.hosts) and all(host.is_running for host in self.hosts)

    def urls(self) -> list[str]:
        """Return the URLs of all hosts, mesh by mesh."""
        return [host.url for host in self.hosts]

    def names_by_url(self) -> dict[str, str]:
        """Return the names of all hosts, by URL."""
        return {host.url: host.name for host in self.hosts}

    def why_ended(self) -> str:
        """Return how each ended host ended, with the last lines of its log."""
        return "\n".join(host.how_ended() for host in self.hosts if not host.is_running)

    def can_run(self, spec: JobTrait) -> bool:
        """Whether ``spec`` asks for this job's meshes, environment and preloaded modules."""
        return (
            isinstance(spec, ProcessJob)
            and self.meshes == spec.meshes
            and self.env == spec.env
            and self.preload == spec.preload
        )

    def _check_ours(self, action: str) -> None:
        """Raise ``JobError`` if the state names a folder that no job of ours made."""
        try:
            check_job_directory(self._directory)
        except NotOurs as error:
            raise JobError(
                f"nothing was {action}: {error}. The job's state is damaged, or a stranger's: "
                f"remove {self._state_path or 'it'} to start anew"
            ) from None

    def _kill(self) -> None:
        if self._directory:
            self._check_ours("ended or removed")
        if process.is_bootstrapped() and isinstance(agent := process.current(), ClientAgent):
            for host in self.hosts:
                agent.unlink(host.url)
        running = [host for host in self.hosts if host.is_running]
        for host in running:
            signal_process(host.pid, host.started, signal.SIGTERM, *host.words)
        deadline = time.monotonic() + _TERM_SECONDS
        while any(host.is_running for host in running) and time.monotonic() < deadline:
            time.sleep(0.005)
        for host in running:
            signal_process(host.pid, host.started, signal.SIGKILL, *host.words)
        for child in self._children:
            child.wait()
        for host in self.hosts:
            if (child_here := _started_here.pop(host.pid, None)) is not None:
                child_here.wait()
        self._children.clear()
        if self._directory:
            remove_job_directory(self._directory)
            # A host agent that was killed could not remove its sockets.
            sweep(runtime_dir())
        self.hosts.clear()

    def _to_data(self) -> dict[str, Any]:
        return {
            "meshes": self.meshes,
            "env": self.env,
            "preload": self.preload,
            "secret": self._secret.hex(),
            "directory": self._directory,
            "hosts": [host._asdict() for host in self.hosts],
        }

    @classmethod
    def _from_data(cls, data: dict[str, Any]) -> ProcessJob:
        job = cls.__new__(cls)  # A subclass may have other parameters.
        ProcessJob.__init__(job, data["meshes"], data["env"], data["preload"])
        job._secret = bytes.fromhex(data["secret"])
        job._directory = data["directory"]
        job.hosts = [HostProcess(**host) for host in data["hosts"]]
        for host in job.hosts:
            folder = f"{job._directory}/{host.name}"
            if (host.url, host.log) != (f"ipc://{folder}/host", f"{folder}/host.log"):
                raise ValueError(f"{host.url} is not in the folder of the job")
        return job


def _status_words(pid: int) -> str:
    child = _started_here.get(pid)
    if child is None:
        return "has ended"
    with contextlib.suppress(subprocess.TimeoutExpired):
        # The kernel reports an end a moment before it gives the status.
        status = child.wait(_STATUS_SECONDS)
        if status >= 0:
            return f"exited with status {status}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-status).name}"
        return f"was killed by signal {-status}"
    return "has ended"


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """In the block, hold a folder's lock, which one program at a time can have.

    A file system without locks lets several programs in.
    """
    file = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
