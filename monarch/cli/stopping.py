"""Ctrl-C during a run, once to save and stop, twice to kill; and who else may ask it to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from monarch.runs import Record
from monarch.runtime.ends.late_thread import run_aside

# Of a batch system that wants its machines back, and of a terminal that was closed.
_REQUESTS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_on_interrupt(records: Sequence[Record]) -> Iterator[None]:
    """The first Ctrl-C asks the recipes to save and return; a second one raises
    ``KeyboardInterrupt`` where the program is. SIGTERM and SIGHUP ask too, however often they come:
    many who send one send it twice. Under ``nohup``, SIGHUP stays ignored."""
    if not records or threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        then = ""
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, before[signal.SIGINT])
            then = "; Ctrl-C again stops at once"
        elif records[0].is_stopping:
            return
        for record in records:
            record.stop()
        # On another thread: this one may be in the middle of a line, and must not begin a second.
        text = f"stopping: what was learned is saved after this step{then}"
        run_aside(lambda: records[0].message(text), name="monarch-stopping")

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_REQUESTS)}
    for number, handler in before.items():
        if number == signal.SIGINT or handler is signal.SIG_DFL:
            signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupt_kept() -> Iterator[None]:
    """Ctrl-C within, if it was swallowed, is raised at the end of the block: there are libraries
    that are imported in the middle of a `try` that excepts everything."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_pressed = False
    before = signal.getsignal(signal.SIGINT)

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal is_pressed
        is_pressed = True
        if callable(before):
            before(number, frame)

    if callable(before):
        signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if is_pressed:
        raise KeyboardInterrupt
