"""Whether to poll for an answer for a moment before going to sleep until it comes.

To fall asleep and to be woken, on a core that has gone to sleep too, may take longer than a call
itself. So a thread that has just sent one question, or one answer, polls for a moment: the next
message may be under way. If that was in vain (the other side takes long, or waits for the very core
that this thread uses) it is tried more and more rarely.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_LOOK_SECONDS = 0.0001
_FREE_FAILURES = 3
_MAX_REST = 1024


class Eagerness:
    """Decides for one waiting thread whether to poll before it sleeps."""

    def __init__(self, look_seconds: float = _LOOK_SECONDS, num_cores: int | None = None) -> None:
        # On one core, the other side cannot even begin while we look.
        self._is_off = (_num_cores() if num_cores is None else num_cores) < 2
        self._look_seconds = look_seconds
        self._num_failures = 0
        self._num_rests = 0

    def is_due(self) -> bool:
        """Return whether to poll this time. Call it once for each wait."""
        if self._num_rests:
            self._num_rests -= 1
            return False
        return not self._is_off

    def look(self, look: Callable[[], bool]) -> bool:
        """Call ``look``, which must be quick, again and again for a moment; return whether it
        returned true."""
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
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
