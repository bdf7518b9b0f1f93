"""Delays Ctrl-C while messages are sent.

Ctrl-C may come between any two steps of the main thread. Half of a cast would leave some ranks in a
collective with ranks that never got the message, and no rank could even save.
"""

from __future__ import annotations

# Not ``signal``, whose conversions to enums cost five times as much as all the rest.
import _signal  # type: ignore[import-not-found]
import threading
from collections.abc import Callable
from signal import SIGINT
from types import FrameType
from typing import Any


class Uninterrupted:
    """A ``with`` block that delays Ctrl-C: a SIGINT within it reaches its handler when the block
    ends."""

    __slots__ = ("_before", "_pressed")

    def __enter__(self) -> None:
        self._before: Callable[[int, FrameType | None], Any] | None = None
        self._pressed: tuple[int, FrameType | None] | None = None
        if threading.get_ident() == threading.main_thread().ident:
            before = _signal.getsignal(SIGINT)
            # Where it is ignored, or ends the process, there is nothing to put off.
            if callable(before):
                self._before = before
                _signal.signal(SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._pressed = number, frame

    def __exit__(self, *error: object) -> None:
        before = self._before
        if before is not None:
            _signal.signal(SIGINT, before)
            if self._pressed is not None:
                before(*self._pressed)


def is_uninterrupted() -> bool:
    """Return whether the main thread is inside an `Uninterrupted` block."""
    return getattr(_signal.getsignal(SIGINT), "__func__", None) is Uninterrupted._note
