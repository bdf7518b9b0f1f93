"""Who asks a push or a watch to end: Ctrl-C, a batch system, a terminal that was closed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from monarch.cli.sync.keys import restore_terminal

_REQUESTS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def asked_to_end() -> Iterator[None]:
    """SIGTERM and SIGHUP do within what Ctrl-C does there, so that what is half-way is put back;
    once, since many who send one send it twice. Then the program ends with 128 and their number, as
    shells have it, and at once if one more comes. Under ``nohup``, SIGHUP stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        pressed = signal.getsignal(signal.SIGINT)
        if len(asked) == 1:
            if not callable(pressed):
                raise KeyboardInterrupt
            pressed(number, frame)

    before = {number: signal.getsignal(number) for number in _REQUESTS}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, on_signal)
    try:
        yield
    except (KeyboardInterrupt, SystemExit, OSError):  # A closed terminal cannot be written to.
        if not asked:
            raise
    finally:
        for number, handler in before.items():
            is_ours = bool(asked) and handler is signal.SIG_DFL
            signal.signal(number, _leaving(128 + asked[0]) if is_ours else handler)
    if asked:
        sys.exit(128 + asked[0])


def at_once_from_here() -> None:
    """What is to be told and tidied up at the end has its time; who presses Ctrl-C then does not
    want it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _leaving(130))


def _leaving(status: int) -> Callable[[int, FrameType | None], None]:
    # It holds what it needs: the interpreter, at its very end, takes modules' names away.
    def leave(
        number: int, frame: FrameType | None, end: Callable[[int], NoReturn] = os._exit
    ) -> None:
        with contextlib.suppress(Exception):
            restore_terminal()
        end(status)

    return leave
