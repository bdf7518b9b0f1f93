"""Delays the main thread's signal handlers while that thread runs the I/O loop's callbacks.

Python calls a handler between any two steps of the main thread, and the handler may raise: the one
of Ctrl-C does, and that of an alarm of the program. In the middle of a callback that would lose
messages that others have sent.
"""

from __future__ import annotations

# Not ``signal``, whose conversions to enums cost more than all the rest.
import _signal  # type: ignore[import-not-found]
from collections.abc import Callable
from types import FrameType
from typing import Any

Handler = Callable[[int, "FrameType | None"], Any]

_NUMBERS = tuple(range(1, _signal.NSIG))
_handlers: dict[int, Handler] = {}
"""The handlers of the signals that are put off, by number."""
_seen: list[Any] = []
_callable: dict[int, Handler] = {}
"""The Python handlers among ``_seen``, by number. Finding them takes longer than comparing."""


class PutOff:
    """A ``with`` block that delays signals: their handlers run at its end. For the main thread
    only.

    ``wake`` is called when a signal has come.
    """

    __slots__ = ("_is_over", "_replaced", "_wake", "noted")

    def __init__(self, wake: Callable[[], object]) -> None:
        self.noted: list[tuple[int, FrameType | None]] = []
        self._wake = wake
        self._replaced: dict[int, Handler] = {}
        self._is_over = False

    def __enter__(self) -> PutOff:
        global _seen, _callable
        handlers = list(map(_signal.getsignal, _NUMBERS))
        if handlers != _seen:
            numbered = zip(_NUMBERS, handlers, strict=True)
            _callable = {number: handler for number, handler in numbered if callable(handler)}
            _seen = handlers
        self._replaced = replaced = _callable
        _handlers.update(replaced)
        try:
            for number in replaced:
                _signal.signal(number, self._note)
        except BaseException:  # from the handler of a signal that is not put off yet
            self._restore()
            raise
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._is_over:
            # Still installed, because another handler raised while we restored.
            self._replaced[number](number, frame)
            return
        self.noted.append((number, frame))
        self._wake()

    def __exit__(self, *error: object) -> None:
        self._restore()
        if self.noted:
            self._call()

    def _call(self) -> None:
        number, frame = self.noted.pop(0)
        try:
            self._replaced[number](number, frame)
        finally:  # The other handlers are called even where one raises.
            if self.noted:
                self._call()

    def _restore(self) -> None:
        try:
            for number, handler in self._replaced.items():
                _signal.signal(number, handler)
        finally:
            self._is_over = True
            _handlers.clear()


def handler_of(number: int) -> Any:
    """Return the program's handler of a signal, also while the signal is delayed. From any
    thread."""
    return _handlers.get(number) or _signal.getsignal(number)
