"""The budget of restarts, for a whole run or a part of one: how many, and how soon."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

_FIRST_WAIT_SECONDS = 0.5


@dataclass(eq=False)
class Restarts:
    """A budget of ``most`` restarts within any ``window_seconds``, or since the last progress.

    So a run of weeks may lose many ranks, and a run that dies at once does not restart forever. The
    first restart comes at once, the next ones after 0.5, 1, 2, ... seconds: a failure by chance
    costs no time, and a repeated failure does not waste resources.
    """

    most: int
    window_seconds: float = math.inf
    longest_wait_seconds: float = 30.0
    num_in_all: int = field(default=0, init=False)
    #: When the restarts that count came, by the monotonic clock.
    _moments: list[float] = field(default_factory=list, init=False)
    #: The furthest step from which a restart would continue.
    _furthest: int = field(default=0, init=False)

    @property
    def num_counted(self) -> int:
        """Return how many restarts of the budget are used up."""
        return len(self._moments)

    def progressed(self) -> None:
        """Record progress that the next restart need not repeat: the budget is full again."""
        self._moments.clear()

    def progressed_to(self, step: int) -> None:
        """Record that the next restart continues after ``step``. It counts as progress if no
        earlier restart could continue after so late a step.
        """
        if step > self._furthest:
            self._furthest = step
            self.progressed()

    def next_wait_seconds(self, now: float) -> float | None:
        """Take one restart from the budget. Return how many seconds to wait before the restart;
        ``None`` if the budget has none left.
        """
        self._moments = [moment for moment in self._moments if now - moment < self.window_seconds]
        num_before = self.num_counted
        if num_before >= self.most:
            return None
        self._moments.append(now)
        self.num_in_all += 1
        if num_before == 0:
            return 0.0
        # An unlimited exponent would overflow a float.
        doubled = _FIRST_WAIT_SECONDS * 2.0 ** min(num_before - 1, 60)
        return min(self.longest_wait_seconds, doubled)
