"""Whether to look for an answer for a moment before one sleeps until it comes.

To fall asleep and to be woken, on a core that has gone to sleep too, may take longer than a call
itself. So a thread that has just sent one question, or one answer, looks again and again for a
moment: the next message may be under way. Where that was in vain (the other side takes its time, or
waits for the very core that we hold) it is tried more and more rarely.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_LOOK_SECONDS = 0.0001
_FREE_FAILURES = 3
_MAX_REST = 1024


class Eagerness:
    """One waiter's; ``look`` says whether something has come, and takes no time."""

    def __init__(self, look_seconds: float = _LOOK_SECONDS, num_cores: int | None = None) -> None:
        # On one core, the other side cannot even begin while we look.
        self._is_off = (_num_cores() if num_cores is None else num_cores) < 2
        self._look_seconds = look_seconds
        self._num_failures = 0
        self._num_rests = 0

    def is_due(self) -> bool:
        """Whether to look this time. To be asked once for each wait."""
        if self._num_rests:
            self._num_rests -= 1
            return False
        return not self._is_off

    def look(self, look: Callable[[], bool]) -> bool:
        """Look for a moment; whether something has come."""
        end = time.perf_counter() + self._look_seconds
        while not (has_come := look()) and time.perf_counter() < end:
            pass
        if has_come:
            self._num_failures = max(0, self._num_failures - 1)
        else:
            self._num_failures += 1
            if self._num_failures > _FREE_FAILURES:
                self._num_rests = min(_MAX_REST, 2**self._num_failures)
        return has_come


def _num_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
