"""Helpers of all tests: waiting for a condition, and programs in processes of their own."""

from __future__ import annotations

import contextlib
import io
import os
import queue
import re
import resource
import socket
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from monarch.runtime.ends.process_group import kill_lost_group
from monarch.runtime.ends.process_start import process_start

T = TypeVar("T")

# On the path of each Python process that tests start: see `write_guard`.
GUARD_FOLDER = Path(__file__).parent / "guard"

_POLL_SECONDS = 0.005
_LONGEST_PAUSE_SECONDS = 0.02


def wait_for(
    condition: Callable[[], T], timeout: float = 20.0, what: str | Callable[[], str] = ""
) -> T:
    """The first true value of ``condition``; fails when there is none within ``timeout``.

    A pause between two looks counts for no more than it was meant to take, about: while the machine
    stands still, what is waited for does too. Where more processes want to run than there are
    cores, time counts for less, as what is waited for gets less of a core.
    """
    waited = 0.0
    while True:
        looked_at = time.monotonic()
        value = condition()
        if value:
            return value
        if waited > timeout:
            told = what if isinstance(what, str) else what()  # as things are now
            raise AssertionError(f"not within {timeout} s: {told or condition}")
        paused_at = time.monotonic()
        time.sleep(_POLL_SECONDS)
        pause = time.monotonic() - paused_at
        waited += (paused_at - looked_at + min(pause, _LONGEST_PAUSE_SECONDS)) * _share_of_a_core()


def _share_of_a_core() -> float:
    """The part of a core that a process got in the last minute, about; at least a fifth."""
    return max(0.2, min(1.0, (os.cpu_count() or 1) / max(os.getloadavg()[0], 1e-9)))


@contextlib.contextmanager
def small_files(num_bytes: int) -> Iterator[None]:
    """Within, no file of this process grows beyond that, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Printed:
    """The output of this process's printer for its procs, both streams kept apart.

    pytest's own fixtures lose what another thread prints while they are read, and it puts its
    streams back between a fixture and a test: the printer gets others.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._files = {1: io.StringIO(), 2: io.StringIO()}
        streams = types.SimpleNamespace(
            modules=sys.modules, stdout=self._files[1], stderr=self._files[2]
        )
        monkeypatch.setattr("monarch.runtime.output.log_printer.sys", streams)

    def text(self, stream: int = 1) -> str:
        return self._files[stream].getvalue()

    def lines(self, stream: int = 1) -> list[str]:
        return self.text(stream).splitlines()

    def wait_for(self, pattern: str, stream: int = 1) -> None:
        wait_for(
            lambda: re.search(pattern, self.text(stream)),
            what=f"{pattern} in {self.text(1)!r}, {self.text(2)!r}",
        )


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended (zombies have)."""
    try:
        status: str = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return False
    return status not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def scan_port(url: str, garbage: bytes) -> None:
    """Connect to a TCP URL as a stranger, say something, and wait to be turned away."""
    host, port = url.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as scanner:
        try:
            scanner.sendall(garbage)
            scanner.shutdown(socket.SHUT_WR)
            while scanner.recv(1000):
                pass
        except TimeoutError:
            raise
        except OSError:
            pass  # Turned away before it was done.


class Program:
    """A program in a process of its own, whose output can be waited for."""

    def __init__(self, process: subprocess.Popen[bytes], stdout: int, stderr: int) -> None:
        """``process`` leads a session; the ends of the pipes that it writes to become ours."""
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._arrived: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.process = process
        self._stdout, self._stderr = os.fdopen(stdout), os.fdopen(stderr)
        self._started = process_start(self.process.pid, even_ended=True)
        self._readers = [
            threading.Thread(target=self._read_out, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @classmethod
    def of_script(cls, script: str, **env: str) -> Program:
        if "PYTHONPATH" in env:
            env["PYTHONPATH"] = f"{GUARD_FOLDER}:{env['PYTHONPATH']}"
        return cls._start(["-c", textwrap.dedent(script)], env)

    @classmethod
    def of_command(cls, *arguments: str) -> Program:
        """`monarch` with these arguments, in the folder of this process."""
        return cls._start(["-m", "monarch.cli.main", *arguments], {})

    @classmethod
    def _start(cls, arguments: Sequence[str], env: Mapping[str, str]) -> Program:
        out, its_out = os.pipe()
        err, its_err = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=its_out,
                stderr=its_err,
                env={**os.environ, **env},
                start_new_session=True,
            )
            return cls(process, out, err)
        finally:
            os.close(its_out)
            os.close(its_err)

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read_out(self) -> None:
        for line in self._stdout:
            self.lines.append(line.rstrip("\n"))
            self._arrived.put(line.rstrip("\n"))
        self._arrived.put(None)

    def _read_errors(self) -> None:
        for line in self._stderr:
            self.errors.append(line.rstrip("\n"))

    def line(self, start: str, timeout: float = 60.0) -> str:
        """Returns the rest of the next line of output that begins with ``start``."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                line = self._arrived.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                raise AssertionError(f"no line {start!r} came:\n{self.story()}")
            if line.startswith(start):
                return line.removeprefix(start).strip()

    def wait(self, timeout: float = 60.0) -> int:
        """Its exit status, once all of its output is there."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.story()}") from None
        for reader in self._readers:
            reader.join(5.0)
        return status

    @property
    def has_closed(self) -> bool:
        """Whether the output is closed in the program, and in all processes that it started."""
        return not any(reader.is_alive() for reader in self._readers)

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)

    def story(self) -> str:
        return "\n".join(["stdout:", *self.lines, "stderr:", *self.errors])

    def close(self) -> None:
        """End it, with all of its session, and let go of its pipes."""
        assert self._started is not None
        # It may have ended, and been waited for, long ago.
        kill_lost_group(self.pid, self._started)
        self.process.wait()
        for reader in self._readers:
            reader.join(5.0)
        for pipe in (self._stdout, self._stderr):
            pipe.close()


def open_files() -> set[str]:
    """The files that this process has open, by path, if they have one."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found
