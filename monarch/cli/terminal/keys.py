"""Keys that a person presses while a command runs: each is read at once, and not echoed.

The terminal's settings are restored when the command ends, however it ends, and while it is
stopped.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import select
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_LOOK_SECONDS = 0.2
_SEQUENCE = re.compile(r"\x1b(\[[\d;?]*[ -/]*[@-~]|O.|.)?")  # arrows and the like
_settings: list[Any] | None = None  # of the terminal, to restore; None: unchanged
_reader: Keys | None = None  # reads the terminal now


class Keys:
    """The pressed keys.

    ``on_press`` is called, on another thread, whenever there is something to `take`. Keys are read
    within `listen`; without a terminal there are none, unless ``is_piped``: then another program
    writes them to our standard input.
    """

    def __init__(self, *, is_piped: bool = False) -> None:
        self.on_press: Callable[[], object] = lambda: None
        self.is_piped = is_piped
        self._pressed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._over = threading.Event()

    def take(self) -> str:
        """Return the next key; "" if none was pressed."""
        with contextlib.suppress(queue.Empty):
            return self._pressed.get_nowait()
        return ""

    @contextmanager
    def listen(self) -> Iterator[bool]:
        """Within, read keys if a person is at the terminal; yield whether there is one."""
        if self.is_piped:
            threading.Thread(target=self._run, name="monarch-keys", daemon=True).start()
            yield True
            self._over.set()
            return
        if not _is_ours():
            yield False
            return
        global _reader
        _set()
        _reader = self
        resumed = signal.signal(signal.SIGCONT, _on_resume)
        thread = threading.Thread(target=self._run, name="monarch-keys", daemon=True)
        thread.start()
        try:
            yield True
        finally:
            self._over.set()
            _reader = None
            signal.signal(signal.SIGCONT, resumed)
            restore_terminal()
            thread.join(2 * _LOOK_SECONDS)

    def _run(self) -> None:
        while not self._over.is_set():
            if not self.is_piped and not _is_foreground():
                self._over.wait(_LOOK_SECONDS)  # To read in the background would stop us.
                continue
            try:
                if not select.select([0], [], [], _LOOK_SECONDS)[0]:
                    continue
                text = os.read(0, 64).decode(errors="replace")
            except OSError:
                return  # The terminal is gone.
            if not text:
                return
            for key in _SEQUENCE.sub("", text):
                self._pressed.put(key)
            self.on_press()


@contextmanager
def keys_here() -> Iterator[Keys]:
    """Within, yield the keys that the person presses.

    In ``monarch dev``, another part of the program reads them already, and gets none in the block.
    """
    reader = _reader
    if reader is None:
        keys = Keys()
        with keys.listen():
            yield keys
        return
    on_press_before, reader.on_press = reader.on_press, lambda: None
    try:
        while reader.take():
            pass  # Pressed before the question.
        yield reader
    finally:
        reader.on_press = on_press_before


def restore_terminal() -> None:
    """Restore the terminal's settings, for an exit that does not return through `listen`."""
    global _settings
    settings, _settings = _settings, None
    if settings is not None and _is_foreground():
        with contextlib.suppress(termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, settings)


def _is_ours() -> bool:
    try:
        is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    except (AttributeError, ValueError):
        return False
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and is_terminal and _is_foreground()


def _is_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _set() -> None:
    global _settings
    try:
        _settings = termios.tcgetattr(0)
        changed = termios.tcgetattr(0)
        changed[3] &= ~(termios.ICANON | termios.ECHO)  # Ctrl-C and Ctrl-Z stay what they are.
        termios.tcsetattr(0, termios.TCSADRAIN, changed)
    except termios.error:
        _settings = None


def _on_resume(number: int, frame: FrameType | None) -> None:
    """Repeat the terminal's settings after Ctrl-Z and ``fg``, since the shell has changed them."""
    if _settings is not None and _is_foreground():
        _set()
