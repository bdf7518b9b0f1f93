"""Says what a change of generation waits for, when that takes seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

__all__ = ["Telling"]

_TELL_SECONDS = (3.0, 10.0, 30.0)


class Telling:
    """``busy`` names those who are waited for, ``tell`` takes a sentence about them.

    The seconds count from its making, however often the fence is cast meanwhile.
    """

    def __init__(
        self, generation: int, busy: Callable[[], Sequence[str]], tell: Callable[[str], None]
    ) -> None:
        self._generation = generation
        self._busy = busy
        self._tell = tell
        self._began = time.monotonic()
        self._times = [*_TELL_SECONDS]

    def wait(self, wait: Callable[[float], bool], seconds: float | None = None) -> bool:
        """Whether ``wait`` says that it is there; for ``seconds`` at most, and tells meanwhile."""
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            due = self._began + self._times[0]
            until = due if end is None else min(due, end)
            if wait(max(0.0, until - time.monotonic())):
                return True
            now = time.monotonic()
            if now >= due:
                self._say(self._times.pop(0))
            if end is not None and now >= end:
                return False

    def _say(self, waited: float) -> None:
        self._times = self._times or [waited + _TELL_SECONDS[-1]]
        busy = self._busy()
        if busy:
            self._tell(f"generation {self._generation} waits for {_few(busy)}, for {waited:g} s")


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
