"""A command on many ranks: the processes are started, shown and ended together."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from monarch.core.log_lines import LineBuffer
from monarch.errors import JobError
from monarch.job.exec.ranks import Rank
from monarch.runtime.node import Node
from monarch.runtime.output.log_printer import LogPrinter
from monarch.runtime.programs.byte_streams import LOST
from monarch.runtime.programs.remote_program import ProgramEnd, RemoteProgram
from monarch.wire.address import Uid
from monarch.wire.message import Log, LogWindow

_LOOK_SECONDS = 0.1
_START_SECONDS = 30.0
_READ_BYTES = 32 * 1024
_VARIABLE = re.compile(r"[^\s=\0]+")


class Program(NamedTuple):
    """The program that each rank runs.

    ``directory`` "" is the host's workspace; ``script`` is a script of ours, run with the
    arguments.
    """

    arguments: tuple[str, ...]
    env: Mapping[str, str] = {}
    directory: str = ""
    script: bytes | None = None
    is_python: bool = False


def check_program(program: Program) -> None:
    """Raise ``JobError`` if the program is invalid: no command, a bad variable name, or a zero
    byte."""
    if not program.arguments and program.script is None:
        raise JobError("no command was given")
    for name in program.env:
        if not _VARIABLE.fullmatch(name):
            raise JobError(f"{name!r} is no name for a variable")
    if any("\0" in text for text in (*program.arguments, *program.env.values())):
        raise JobError("a command and its variables cannot hold a zero byte")


class ExecRun:
    """The processes of one command, on one or more ranks.

    Lines of several ranks get the rank in front, and are aggregated over ``window_seconds`` if that
    is not 0; the output of a single rank is passed on as it is. ``folder`` also gets each rank's
    output: ``rank0.stdout`` and so on.
    """

    def __init__(
        self,
        node: Node,
        ranks: Sequence[Rank],
        program: Program,
        *,
        window_seconds: float = 0.0,
        folder: Path | None = None,
    ) -> None:
        self.ranks = list(ranks)
        #: The programs of the ranks, in their order.
        self.programs = [RemoteProgram(node, rank.host, _ignore) for rank in self.ranks]
        self._folder = folder
        self._is_alone = len(self.ranks) == 1
        #: The output of a single rank that is not shown yet: stream and data.
        self._raw: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        #: Prints the lines of several ranks.
        self._printer = LogPrinter(self._printed)
        #: Stream and size of printed data that a program has not been told of, by its uid.
        self._unshown: dict[Uid, deque[tuple[int, int]]] = {x.uid: deque() for x in self.programs}
        #: Unfinished lines, by the program's uid and the stream.
        self._buffers: dict[tuple[Uid, int], LineBuffer] = {}
        self._labels: dict[Uid, str] = {}
        self._by_uid = {remote.uid: remote for remote in self.programs}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        if window_seconds > 0 and not self._is_alone:
            self._printer.set_window(LogWindow(tuple(self._by_uid), "exec", window_seconds))
        width = max(len(str(rank.number)) for rank in self.ranks)
        for rank, remote in zip(self.ranks, self.programs, strict=True):
            self._labels[remote.uid] = f"{rank.host_name} {rank.number:>{width}}"
            remote.on_output = functools.partial(self._take, remote, rank)
            remote.run(
                program.arguments,
                env={**rank.env, **program.env},
                directory=program.directory,
                script=program.script,
                is_python=program.is_python,
            )
            remote.ended.on_set(functools.partial(self._finish_lines, remote))

    def _take(self, remote: RemoteProgram, rank: Rank, stream: int, data: bytes) -> None:
        """Write output of a rank to its file, then print its whole lines.

        The output of a single rank is queued for `wait` instead, unchanged.
        """
        if self._folder is not None:
            path = self._folder / f"rank{rank.number}.{'stdout' if stream == 1 else 'stderr'}"
            with contextlib.suppress(OSError), open(path, "ab") as file:
                file.write(data)
        if self._is_alone:
            self._raw.put((stream, data))
            return
        buffer = self._buffers.setdefault((remote.uid, stream), LineBuffer())
        lines = buffer.feed(data, time.monotonic()).shown
        if lines:
            self._unshown[remote.uid].append((stream, len(data)))
            self._print(remote, stream, lines)
        else:
            remote.shown(stream, len(data))

    def _print(self, remote: RemoteProgram, stream: int, lines: bytes) -> None:
        # The printer reports each printed line to its host: here that is the program.
        label = self._labels[remote.uid]
        self._printer.print(Log(uid=remote.uid, label=label, stream=stream, host=remote.uid), lines)

    def _printed(self, uid: Uid, num_bytes: int) -> None:
        unshown = self._unshown[uid]
        if unshown:
            self._by_uid[uid].shown(*unshown.popleft())

    def _finish_lines(self, remote: RemoteProgram) -> None:
        for stream in (1, 2):
            buffer = self._buffers.pop((remote.uid, stream), None)
            last = buffer.end().shown if buffer is not None else b""
            if last:
                self._print(remote, stream, last)

    def feed(self, fd: int) -> None:
        """Pass on the data of a file descriptor as standard input, for a single rank."""

        def read() -> None:
            remote = self.programs[0]
            with contextlib.suppress(OSError):
                while data := os.read(fd, _READ_BYTES):
                    remote.write(data)
            remote.end_input()

        threading.Thread(target=read, name="monarch-stdin", daemon=True).start()

    def end_input(self) -> None:
        """Close the standard input of all processes."""
        for remote in self.programs:
            remote.end_input()

    def signal(self, number: int) -> None:
        """Send a signal to all processes that still run."""
        for remote in self.programs:
            if not remote.ended.is_set:
                remote.signal(number)

    def wait(self, write: Callable[[int, bytes], object]) -> list[ProgramEnd]:
        """Wait until all have ended, and return the end of each.

        ``write(stream, data)`` shows the output of a single rank.
        """
        deadline = time.monotonic() + _START_SECONDS
        while True:
            self.write_some(write)
            if all(remote.ended.is_set for remote in self.programs):
                break
            late = [remote for remote in self.programs if not remote.started.is_set]
            if late and time.monotonic() > deadline:
                for remote in late:
                    remote.on_over(LOST, f"its host has not answered for {_START_SECONDS:.0f} s")
        self.write_some(write)
        self._printer.flush()
        return [remote.ended.value for remote in self.programs]

    def write_some(self, write: Callable[[int, bytes], object]) -> None:
        """Show available output; wait a moment if there is none."""
        if not self._is_alone:
            running = next((remote for remote in self.programs if not remote.ended.is_set), None)
            if running is not None:
                running.ended.wait(_LOOK_SECONDS)
            return
        remote = self.programs[0]
        with contextlib.suppress(queue.Empty):
            while True:
                seconds = 0.0 if remote.ended.is_set else _LOOK_SECONDS / 5
                stream, data = self._raw.get(timeout=seconds)
                write(stream, data)
                remote.shown(stream, len(data))

    def close(self) -> None:
        """End the processes that still run."""
        for remote in self.programs:
            remote.leave()
        self._printer.close()


def _ignore(stream: int, data: bytes) -> None:
    """Do nothing with output that arrives before the output is connected."""


def write_through(stream: int, data: bytes) -> None:
    """Write bytes unchanged to our own standard output or error."""
    file = sys.stdout if stream == 1 else sys.stderr
    binary = getattr(file, "buffer", None)
    if binary is None:  # A notebook's.
        file.write(data.decode(errors="replace"))
    else:
        file.flush()
        binary.write(data)
    file.flush()


def run_and_show(
    node: Node,
    ranks: Sequence[Rank],
    program: Program,
    *,
    window_seconds: float = 0.0,
    stdin: int | None = None,
    folder: Path | None = None,
    tell: Callable[[str], object] = lambda text: None,
) -> int:
    """Run a command on all ranks and show its output; return the largest exit status.

    Ctrl-C is passed on; a second one ends the programs at once, and so does the end of this
    process.
    """
    run = ExecRun(node, ranks, program, window_seconds=window_seconds, folder=folder)
    num_pressed = 0
    try:
        if stdin is not None:
            run.feed(stdin)
        else:
            run.end_input()
        while True:
            try:
                ends = run.wait(write_through)
                break
            except KeyboardInterrupt:
                num_pressed += 1
                run.signal(signal.SIGINT if num_pressed == 1 else signal.SIGKILL)
                if num_pressed == 1:
                    tell("\ninterrupting it there; Ctrl-C again ends it at once")
        return _status(run, ends, num_pressed, tell)
    finally:
        run.close()


def _status(
    run: ExecRun, ends: Sequence[ProgramEnd], num_pressed: int, tell: Callable[[str], object]
) -> int:
    by_reason: dict[str, list[str]] = {}
    for rank, end in zip(run.ranks, ends, strict=True):
        reason = end.reason or (f"ended with status {end.status}" if end.status else "")
        if reason and (end.reason or len(ends) > 1) and not num_pressed:
            by_reason.setdefault(reason, []).append(f"{rank.host_name} {rank.number}")
    for reason, names in by_reason.items():
        listed = ", ".join(names) if len(names) < 9 else f"{', '.join(names[:8])}, ..."
        tell(f"{listed}: {reason}")
    return max(end.status for end in ends)
