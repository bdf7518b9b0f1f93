"""An allocation of local processes: each is a host of its own, with its own workspace folder.

The whole of a cluster on one machine. The host agents outlive the program that started them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from monarch.actor import attach_to_workers
from monarch.config import runtime_dir
from monarch.errors import JobError
from monarch.job.job import JobState, JobTrait
from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent
from monarch.runtime.ends.process_group import signal_process
from monarch.runtime.ends.process_start import process_start
from monarch.runtime.secret import SECRET_VARIABLES
from monarch.wire.address import new_uid
from monarch.wire.keys import new_secret

__all__ = ["HostProcess", "ProcessJob"]

_TERM_SECONDS = 2.0


class HostProcess(NamedTuple):
    """A host agent's process. ``started`` tells it from a later one with the same pid."""

    mesh: str
    url: str
    pid: int
    started: int
    workspace: str
    log: str

    @property
    def channel(self) -> str:
        """Upstream's name for ``url``."""
        return self.url

    @property
    def name(self) -> str:
        """How it calls itself."""
        return os.path.basename(os.path.dirname(self.log))

    @property
    def is_running(self) -> bool:
        return self.started == process_start(self.pid) is not None


class ProcessJob(JobTrait):
    """``meshes`` gives the number of hosts by mesh name: ``ProcessJob({"trainers": 2})``.

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
        """The hosts as upstream names them, ``trainers_0``; programs ask it for their ``pid``."""
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
        self._directory = os.path.join(runtime_dir(), f"job-{new_uid()}")
        os.mkdir(self._directory, 0o700)
        try:
            for mesh, num_hosts in self.meshes.items():
                for index in range(num_hosts):
                    self.hosts.append(self._start(mesh, f"{mesh}{index}"))
        except BaseException:
            self._kill()
            raise

    def _start(self, mesh: str, name: str) -> HostProcess:
        folder = os.path.join(self._directory, name)
        os.mkdir(folder, 0o700)
        url = f"ipc://{folder}/host"
        log = os.path.join(folder, "host.log")
        env = {**os.environ, **self.env}
        for variable in SECRET_VARIABLES:
            env.pop(variable, None)
        workspace = env.setdefault("WORKSPACE_DIR", f"{folder}/workspace")
        if num_hosts_in(self.meshes) > 1 and "WORKSPACE_DIR" in os.environ | self.env:
            # Two hosts must not share one folder.
            workspace = env["WORKSPACE_DIR"] = os.path.join(workspace, name)
        # The secret goes through a pipe: neither arguments nor environment are private.
        reader, writer = os.pipe()
        try:
            os.write(writer, self._secret.hex().encode())
            os.close(writer)
            env["MONARCH_JOB_SECRET_FD"] = str(reader)
            with open(log, "wb") as output:
                child = subprocess.Popen(
                    [sys.executable, "-m", "monarch.runtime.host_main", url, name],
                    env=env, pass_fds=[reader], start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                )  # fmt: skip
        finally:
            os.close(reader)
        self._children.append(child)
        started = process_start(child.pid) or 0
        return HostProcess(mesh, url, child.pid, started, workspace, log)

    def _state(self) -> JobState:
        hosts = {}
        for mesh in self.meshes:
            urls = [host.url for host in self.hosts if host.mesh == mesh]
            hosts[mesh] = attach_to_workers(ca=None, workers=urls, name=mesh)
            if self.preload:
                hosts[mesh].preload(self.preload)
        return JobState(hosts)

    def _is_running(self) -> bool:
        return bool(self.hosts) and all(host.is_running for host in self.hosts)

    def urls(self) -> list[str]:
        return [host.url for host in self.hosts]

    def names_by_url(self) -> dict[str, str]:
        return {host.url: host.name for host in self.hosts}

    def why_ended(self) -> str:
        ended = [host for host in self.hosts if not host.is_running]
        told = []
        for host in ended:
            lines = last_lines(host.log)
            told.append(
                f"{host.name} (pid {host.pid}) has ended{':' if lines else ''}\n{lines}".rstrip()
            )
        return "\n".join(told)

    def can_run(self, spec: JobTrait) -> bool:
        return (
            isinstance(spec, ProcessJob)
            and self.meshes == spec.meshes
            and self.env == spec.env
            and self.preload == spec.preload
        )

    def _kill(self) -> None:
        if process.is_bootstrapped() and isinstance(agent := process.current(), ClientAgent):
            for host in self.hosts:
                agent.unlink(host.url)
        end_processes([host for host in self.hosts if host.is_running])
        for child in self._children:
            child.wait()
        self._children.clear()
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
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
        job = cls.__new__(cls)  # A subclass may want other arguments.
        ProcessJob.__init__(job, data["meshes"], data["env"], data["preload"])
        job._secret = bytes.fromhex(data["secret"])
        job._directory = data["directory"]
        job.hosts = [HostProcess(**host) for host in data["hosts"]]
        return job


def num_hosts_in(meshes: dict[str, int]) -> int:
    return sum(meshes.values())


def last_lines(path: str, num_lines: int = 5) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-num_lines:]).rstrip()
    except FileNotFoundError:
        return ""  # Somebody has tidied up.


def end_processes(hosts: Sequence[HostProcess]) -> None:
    """SIGTERM, and SIGKILL for those that are still there after two seconds."""
    for host in hosts:
        signal_process(host.pid, host.started, signal.SIGTERM)
    deadline = time.monotonic() + _TERM_SECONDS
    while any(host.is_running for host in hosts) and time.monotonic() < deadline:
        time.sleep(0.005)
    for host in hosts:
        signal_process(host.pid, host.started, signal.SIGKILL)
