"""Programs that begin where Python has imported our runtime: forked from a process that did.

Most of what a short program takes is imports, and the tests start a thousand. A process of each
test worker imports what they have in common, once, and is forked for each program; it has one
thread and no state of ours. What a program does from its first line on is as ever: its arguments,
environment, folder, streams, session and end. Where the environment says something to Python
itself, the program is started the usual way, as are those of tests about starting.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_MAX_BYTES = 1 << 20
_CONTROL_FD = "MONARCH_TEST_WARM_FD"
# Read by Python or the dynamic linker when a process begins, or by libraries at their import.
_READ_AT_START = (
    "MONARCH_", "PYTHON", "LD_", "OMP_", "MKL_", "MALLOC_", "LC_", "LANG", "TZ", "OTEL_",
    "COVERAGE",
)  # fmt: skip
_NOT_READ = {"PYTHONUNBUFFERED"}  # The child sees to it.
_IMPORTED = (
    "monarch.cli.main", "monarch.cli.entry", "monarch.cli.run", "monarch.job", "monarch.runs",
    "monarch.actor", "monarch.runtime.process", "monarch.runtime.client_agent", "monarch_sync",
)  # fmt: skip


class WarmProgram:
    """Stands in for a ``subprocess.Popen``; the process has another parent, which waits for it."""

    def __init__(self, pid: int, ended: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            self._read()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a program", timeout or 0.0)
            self._read()
        assert self.returncode is not None
        return self.returncode

    def _read(self) -> None:
        data = self._ended.recv(64)
        assert data, "the process that programs are forked from has ended"
        self.returncode = int(data)
        self._ended.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class WarmPython:
    """The process that is forked for programs. It starts with the first of them."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._environment: dict[str, str] = {}

    @property
    def pids(self) -> set[int]:
        return set() if self._server is None else {self._server.pid}

    @property
    def descriptors(self) -> set[int]:
        return set() if self._socket is None else {self._socket.fileno()}

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether Python would begin with this environment as it did with ours."""
        self._start()
        names = {*environment, *self._environment} - _NOT_READ
        return all(
            environment.get(name) == self._environment.get(name)
            for name in names if name.startswith(_READ_AT_START)
        )  # fmt: skip

    def run(
        self,
        command: Sequence[str],
        *,
        cwd: str | os.PathLike[str],
        env: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
        own_session: bool = False,
    ) -> WarmProgram:
        """`monarch` with the arguments ``command``. The descriptors are the program's streams; they
        stay the caller's to close. With a session of its own it has begun it when this returns."""
        self._start()
        assert self._socket is not None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order = {
            "command": list(command), "cwd": os.fspath(cwd), "env": dict(env),
            "own_session": own_session,
        }  # fmt: skip
        data = json.dumps(order).encode("utf-8", "surrogateescape")
        with theirs, os.fdopen(os.memfd_create("order"), "w+b") as file:
            file.write(data)
            file.flush()
            fds = [file.fileno(), stdin, stdout, stderr, theirs.fileno()]
            socket.send_fds(self._socket, [b"fork"], fds)
        pid = int(ours.recv(64) or b"0")
        assert pid, "the process that programs are forked from has ended"
        return WarmProgram(pid, ours)

    def close(self) -> None:
        if self._server is not None and self._socket is not None:
            self._socket.close()
            self._server.wait(10)
            self._server = self._socket = None

    def _start(self) -> None:
        if self._server is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._environment = dict(os.environ)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", __name__],
                cwd=Path(__file__).parents[1],
                env={**os.environ, _CONTROL_FD: str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._socket = ours


warm_python = WarmPython()


# In the process that is forked.


def _serve(control: socket.socket) -> dict[str, Any]:
    """Fork for each order; in the child that comes of one, return the order."""
    children: dict[int, tuple[int, socket.socket]] = {}
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    while True:
        for fd, _ in waiting.poll():
            if fd != control.fileno():
                pid, ended = children.pop(fd)
                _, status = os.waitpid(pid, 0)
                with contextlib.suppress(OSError), ended:
                    ended.send(str(os.waitstatus_to_exitcode(status)).encode())
                waiting.unregister(fd)
                os.close(fd)
                continue
            data, fds, _, _ = socket.recv_fds(control, 64, 5)
            if not data:
                os._exit(0)
            ended = socket.socket(fileno=fds[4])
            pid = os.fork()
            if pid == 0:
                control.close()
                for child_fd, (_, other) in children.items():
                    os.close(child_fd)
                    other.close()
                with os.fdopen(fds[0], "rb") as file:
                    file.seek(0)
                    order: dict[str, Any] = json.loads(
                        file.read().decode("utf-8", "surrogateescape")
                    )
                if order["own_session"]:
                    os.setsid()
                with contextlib.suppress(OSError), ended:
                    ended.send(str(os.getpid()).encode())
                for number, fd_given in enumerate(fds[1:4]):
                    os.dup2(fd_given, number)
                for fd_given in fds[1:4]:
                    if fd_given > 2:
                        os.close(fd_given)
                return order
            for fd_given in fds[:4]:
                os.close(fd_given)
            pidfd = os.pidfd_open(pid)
            children[pidfd] = pid, ended
            waiting.register(pidfd, select.POLLIN)


def _become(order: Mapping[str, Any]) -> None:
    """This process is the program now, as Python would have begun it."""
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    tempfile.tempdir = None  # It may be another than was looked up before.
    sys.path[0] = ""
    if os.environ.get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            assert isinstance(stream, io.TextIOWrapper)
            stream.reconfigure(write_through=True)


def _wait_for_order() -> dict[str, Any]:
    for name in _IMPORTED:
        importlib.import_module(name)
    control = socket.socket(fileno=int(os.environ.pop(_CONTROL_FD)))
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads is not forked"
    gc.collect()
    gc.freeze()
    return _serve(control)


if __name__ == "__main__":
    order = _wait_for_order()
    _become(order)
    sys.argv = ["monarch", *order["command"]]
    from monarch.cli.main import main

    main()
