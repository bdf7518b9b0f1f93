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

    __slots__ = ("_handler", "_pressed")

    def __enter__(self) -> None:
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._pressed: tuple[int, FrameType | None] | None = None
        if threading.get_ident() == threading.main_thread().ident:
            handler = _signal.getsignal(SIGINT)
            # If SIGINT is ignored, or ends the process, there is no handler to delay.
            if callable(handler):
                self._handler = handler
                _signal.signal(SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._pressed = number, frame

    def __exit__(self, *error: object) -> None:
        if self._handler is not None:
            _signal.signal(SIGINT, self._handler)
            if self._pressed is not None:
                self._handler(*self._pressed)


def is_uninterrupted() -> bool:
    """Return whether the main thread is inside an `Uninterrupted` block."""
    return getattr(_signal.getsignal(SIGINT), "__func__", None) is Uninterrupted._note
