"""Connects a person's terminal with a program on a host: keys go there, output comes here."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from monarch.errors import JobError
from monarch.runtime.node import Node
from monarch.runtime.programs.remote_program import ProgramEnd, RemoteProgram
from monarch.wire.address import ProcAddress, Uid

_READ_BYTES = 4096
_LOOK_SECONDS = 0.05
_START_SECONDS = 30.0
# Resets a terminal after a full-screen program that cannot do it itself any more: the alternate
# screen, the cursor's keys, a hidden cursor, the mouse, pastes, colours.
_RESET = b"\x1b[?1049l\x1b[?1l\x1b>\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1006l\x1b[?2004l\x1b[0m"


def terminal_size() -> tuple[int, int]:
    """Return the terminal's rows and columns."""
    size = shutil.get_terminal_size()
    return size.lines, size.columns


class TerminalSession:
    """A program on a host in this terminal; ``on_keys`` may change what is typed before it is sent.

    Raises ``JobError`` if standard input and output are no terminal.
    """

    def __init__(
        self,
        node: Node,
        host: ProcAddress,
        *,
        uid: Uid = "",
        on_keys: Callable[[bytes], bytes] = lambda keys: keys,
    ) -> None:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise JobError(
                "this needs a terminal, and standard input or output is none: `monarch exec` runs "
                "a command without one"
            )
        self._on_keys = on_keys
        self._output: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self._is_over = threading.Event()
        self.program = RemoteProgram(
            node, host, lambda stream, data: self._output.put((stream, data)), uid=uid
        )

    def serve(self, until: Callable[[], bool] = lambda: False) -> ProgramEnd | None:
        """Show the program until it ends, and return its end.

        Returns ``None`` if ``until`` returns true first. Raises ``JobError`` if the program cannot
        be started, or the host does not answer.
        """
        program = self.program
        if not program.started.wait(_START_SECONDS):
            program.leave()
            raise JobError(f"the host has not answered for {_START_SECONDS:.0f} s")
        if program.started.value.error:
            raise JobError(program.started.value.error)
        self._is_over.clear()
        with self._raw(), self._resizing():
            reader = threading.Thread(target=self._read, name="monarch-keys", daemon=True)
            reader.start()
            try:
                while not until():
                    if self._show():
                        continue
                    if program.ended.is_set:
                        self._show()
                        return program.ended.value
                return None
            finally:
                self._is_over.set()
                reader.join(1.0)

    def _show(self) -> bool:
        """Show a piece of output; return False if none came for a moment."""
        try:
            stream, data = self._output.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            return False
        _write(data)
        self.program.shown(stream, len(data))
        return True

    def _read(self) -> None:
        while not self._is_over.is_set():
            try:
                if not select.select([0], [], [], _LOOK_SECONDS)[0]:
                    continue
                keys = os.read(0, _READ_BYTES)
            except OSError:
                keys = b""
            if not keys:
                self.program.signal(signal.SIGHUP)  # The terminal is gone.
                return
            keys = self._on_keys(keys)
            if keys:
                self.program.write(keys)

    @contextmanager
    def _raw(self) -> Iterator[None]:
        attributes = termios.tcgetattr(0)

        def leave(number: int, frame: FrameType | None) -> None:
            raise SystemExit(128 + number)

        signals = {n: signal.signal(n, leave) for n in (signal.SIGTERM, signal.SIGHUP)}
        tty.setraw(0, termios.TCSADRAIN)
        try:
            yield
        finally:
            for number, handler in signals.items():
                signal.signal(number, handler)
            with contextlib.suppress(termios.error, OSError):
                if not self.program.ended.is_set:
                    _write(_RESET)
                termios.tcsetattr(0, termios.TCSADRAIN, attributes)

    @contextmanager
    def _resizing(self) -> Iterator[None]:
        handler = signal.signal(
            signal.SIGWINCH, lambda number, frame: self.program.resize(terminal_size())
        )
        try:
            yield
        finally:
            signal.signal(signal.SIGWINCH, handler)


def _write(data: bytes) -> None:
    sys.stdout.flush()
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
