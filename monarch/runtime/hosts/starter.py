"""The far end of a login: starts, inspects and ends a host agent on this machine.

Orders and answers are lines of JSON on standard input and output; an answer begins with the mark
from the first line, because a login shell may print text of its own. The job's secret is sent that
way too: arguments and environment of a login are not private. A host agent stays only after the
order ``keep``. If the login ends before, so does the agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from monarch.config import runtime_dir
from monarch.ours import NotOurs
from monarch.runtime.ends.process_group import signal_process
from monarch.runtime.ends.process_start import is_ours, is_running, process_start
from monarch.runtime.hosts.agent_process import AGENT_PROGRAM, start_agent
from monarch.runtime.hosts.bundle_place import BUNDLE
from monarch.runtime.hosts.directory import (
    check_job_directory,
    make_job_directory,
    remove_job_directory,
    sweep,
)
from monarch.version import __version__

# All that an agent starts inherits this variable, which has the agent's own folder: by that it is
# found again, even in another process group.
ALLOCATION = "MONARCH_ALLOCATION"


_READY_SECONDS = 60.0
_TERM_SECONDS = 2.0
_KILL_SECONDS = 5.0
_LOOK_SECONDS = 0.01
_TAIL_LINES = 5


class _Failure(Exception):
    """An error for the user; it is sent back over the login."""


def main(mark: str, version: str, early_lines: Sequence[str] = ()) -> None:
    """Carry out the orders that come in on stdin until it ends; ``early_lines`` come first.

    Each order is a line of JSON, and so is its answer. If ``version`` is not this monarch's, the
    only answer is an error.
    """
    starter = _Starter()
    with contextlib.suppress(KeyboardInterrupt):
        if version != __version__:
            error = (
                f"monarch is {__version__} there ({sys.executable}), and {version} here: install "
                "the same on both"
            )
            _tell(mark, {"error": error})
            return
        for line in chain(early_lines, iter(sys.stdin.readline, "")):
            order = json.loads(line)
            try:
                answer = starter.orders[order.pop("do")](**order)
            except _Failure as failure:
                answer = {"error": str(failure)}
            except OSError as error:
                answer = {"error": str(error)}
            _tell(mark, answer)
    starter.close()


def _tell(mark: str, answer: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # The login has ended.
        sys.stdout.write(f"{mark}{json.dumps(answer)}\n")
        sys.stdout.flush()


class _Starter:
    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._directory = ""
        self._is_new = False
        self.orders: dict[str, Callable[..., dict[str, Any]]] = {
            "start": self._start, "keep": self._keep, "look": _look, "end": _end,
        }  # fmt: skip

    def _start(
        self,
        *,
        name: str,
        address: str,
        port: int,
        secret: str,
        allocation: str,
        env: Mapping[str, str],
        workspace: str,
    ) -> dict[str, Any]:
        """Start a host agent that others find at ``address``; ``port`` 0 means any free port.

        Returns its ``url``, ``pid``, start time (``started``), ``directory`` and ``workspace``.
        """
        listener = _listener(port)
        ready, is_ready = os.pipe()
        folder = re.sub(r"[^\w.-]", "_", name)
        self._is_new = not os.path.exists(os.path.join(runtime_dir(), f"job-{allocation}", folder))
        directory = make_job_directory(allocation, folder)
        log = os.path.join(directory, "host.log")
        workspace = workspace or env.get("WORKSPACE_DIR") or f"{directory}/workspace"
        variables = {**os.environ, **env, "WORKSPACE_DIR": workspace, ALLOCATION: directory}
        variables["MONARCH_READY_FD"] = str(is_ready)
        bundle = os.environ.get(BUNDLE)
        if bundle:
            # Ahead of the job's own PYTHONPATH too, as the agent is imported from the bundle.
            others = variables.get("PYTHONPATH", "").split(os.pathsep)
            paths = [bundle, *(path for path in others if path not in ("", bundle))]
            variables["PYTHONPATH"] = os.pathsep.join(paths)
        try:
            with open(log, "ab") as output:
                self._child = start_agent(
                    f"tcp://{address}:fd{listener.fileno()}",
                    name,
                    secret=secret,
                    env=variables,
                    pass_fds=[listener.fileno(), is_ready],
                    # Its procs import from this folder first: a checkout there must not hide the
                    # bundle.
                    cwd=directory if bundle else None,
                    stdout=output,
                    stderr=output,
                )
                self._directory = directory
        finally:
            os.close(is_ready)
            port = listener.getsockname()[1]
            listener.close()
        pid = self._child.pid
        started = process_start(pid) or 0
        with os.fdopen(ready, "rb") as pipe:
            if not select.select([pipe], [], [], _READY_SECONDS)[0]:
                raise _Failure(f"the host agent (pid {pid}) does not get ready; see {log}")
            if not pipe.read(1):
                status = self._child.wait()
                raise _Failure(
                    f"the host agent exited with status {status}; the last lines of its log:\n"
                    f"{_tail(log)}"
                )
        return {
            "url": f"tcp://{address}:{port}",
            "pid": pid,
            "started": started,
            "directory": directory,
            "workspace": workspace,
        }

    def _keep(self) -> dict[str, Any]:
        self._child = None
        return {}

    def close(self) -> None:
        """End the agents that were started and not kept, because the login is over."""
        if self._child is not None:
            _end_processes(self._child.pid, process_start(self._child.pid) or 0, self._directory)
            self._child.wait()
            if self._is_new:
                _remove(self._directory)


def _listener(port: int) -> socket.socket:
    """Return a socket that listens at the address through which the login came in.

    Clients can reach that address. ``port`` 0 picks a free one.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_interface(), port))
    except OSError as error:
        listener.close()
        words = error.strerror or str(error)
        raise _Failure(
            f"cannot listen at port {port}: {words}. Another host agent, or another program, may "
            "be there; choose another `port`, or 0 for any that is free"
        ) from None
    listener.listen(1024)
    return listener


def _interface() -> str:
    fields = os.environ.get("SSH_CONNECTION", "").split()
    if len(fields) != 4:
        return "0.0.0.0"
    return "127.0.0.1" if fields[2] == "::1" else "0.0.0.0" if ":" in fields[2] else fields[2]


def _look(*, pid: int, started: int, directory: str) -> dict[str, Any]:
    is_there = is_ours(pid, started, AGENT_PROGRAM)
    try:
        check_job_directory(directory)
    except OSError as error:
        return {"is_running": is_there, "log": str(error)}
    return {"is_running": is_there, "log": _tail(os.path.join(directory, "host.log"))}


def _end(*, pid: int, started: int, directory: str) -> dict[str, Any]:
    """End an agent and everything that it started.

    Returns the pids that could not be ended, under ``left``. Refuses a ``directory`` that
    ``_start`` did not make: the order may come from a damaged or foreign file.
    """
    try:
        check_job_directory(directory)
    except NotOurs as error:
        raise _Failure(f"nothing was ended or removed: {error}") from None
    pids = _end_processes(pid, started, directory)
    _remove(directory)
    return {"left": sorted(pids)}


def _end_processes(pid: int, started: int, directory: str) -> set[int]:
    """Send SIGTERM to the agent, which lets its procs clean up, then SIGKILL to the rest.

    Return the pids of the processes that still run.
    """
    is_agent = is_ours(pid, started, AGENT_PROGRAM)
    if is_agent:
        signal_process(pid, started, signal.SIGTERM)
    deadline = time.monotonic() + _TERM_SECONDS
    while is_agent and is_running(pid, started) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    if is_agent:
        signal_process(pid, started, signal.SIGKILL)
    deadline = time.monotonic() + _KILL_SECONDS
    while True:
        starts = _processes_of(directory)
        if not starts or time.monotonic() > deadline:
            return set(starts)
        for process_id, start in starts.items():
            signal_process(process_id, start, signal.SIGKILL)
        time.sleep(_LOOK_SECONDS)


def _processes_of(directory: str) -> dict[int, int]:
    """Return the processes that an agent has started, and the agent itself: the start time of each,
    by its pid.

    They are found by an environment variable that names ``directory``.
    """
    sought = f"{ALLOCATION}={directory}".encode()
    starts = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if sought in file.read().split(b"\0") and (since := process_start(int(name))):
                starts[int(name)] = since
    return starts


def _remove(directory: str) -> None:
    remove_job_directory(directory)
    with contextlib.suppress(OSError):
        sweep(runtime_dir())


def _tail(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-_TAIL_LINES:]).rstrip()
    except OSError:
        return ""
