"""Keeping Ctrl-C out of the few moments in which it would leave something behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["deferred_interrupts"]


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """A Ctrl-C inside the block takes effect at its end. Keep the block short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pending.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pending:
            signal.raise_signal(signal.SIGINT)
