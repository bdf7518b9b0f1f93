"""A command on a terminal of its own: what a person sees, and the keys they press."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support import wait_for

__all__ = ["OnTerminal", "on_terminal"]

_END = "\x1b]all is written\x07"
_CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


class OnTerminal:
    """``output`` is all that was written so far, ``text`` the same without control codes."""

    def __init__(self, command: Sequence[str], folder: Path, columns: int, rows: int) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.settings_before = termios.tcgetattr(slave)
        environment = {**os.environ, "TERM": "xterm-256color"}
        for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=slave, stdout=slave, stderr=slave,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self._slave = slave  # Kept open, so that the terminal is there after the command.
        self._written = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        return self._written.replace(_END, "")

    @property
    def text(self) -> str:
        return _CONTROL.sub("", self.output).replace("\r", "")

    @property
    def settings(self) -> list[object]:
        """How the terminal is set now."""
        return termios.tcgetattr(self._slave)

    def until(self, text: str, *, times: int = 1, seconds: float = 60.0) -> None:
        """Wait for something to be shown."""
        try:
            wait_for(lambda: self.text.count(text) >= times, seconds)
        except AssertionError:
            raise AssertionError(f"no {text!r} in:\n{self.text}") from None

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def end(self, seconds: float = 60.0) -> int:
        """Wait until it ends, and all that it has written is in ``output``; its status."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended:\n{self.text}") from None
        os.write(self._slave, _END.encode())
        wait_for(lambda: _END in self._written, what="the last of its output")
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._slave)
        self._reader.join(10.0)
        os.close(self._master)

    def _read(self) -> None:
        # A character may come in two pieces.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while True:
            try:
                got = os.read(self._master, 1 << 16)
            except OSError:  # Nobody has it open any more.
                return
            if not got:
                return
            self._written += decoder.decode(got)


@contextmanager
def on_terminal(
    folder: Path, *arguments: str, columns: int = 80, rows: int = 24, script: str = ""
) -> Iterator[OnTerminal]:
    """``monarch`` with these arguments in a folder, or a script in Python."""
    command = [sys.executable, "-m", "monarch.cli.main", *arguments]
    started = OnTerminal(
        [sys.executable, "-c", script] if script else command, folder, columns, rows
    )
    try:
        yield started
    finally:
        started.close()
