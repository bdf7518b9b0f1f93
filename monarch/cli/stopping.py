"""Ctrl-C during a run: once to save and stop, twice to kill."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from monarch.runs import Record

__all__ = ["interrupt_kept", "stop_on_interrupt"]


@contextmanager
def stop_on_interrupt(records: Sequence[Record]) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) asks the recipes to save and return; a second one raises
    ``KeyboardInterrupt`` where the program is."""
    if not records or threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        for record in records:
            record.stop()
        records[0].display.message(
            "stopping: what was learned is saved after this step; Ctrl-C again stops at once"
        )

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
