"""How often, and how soon, what was lost is begun again: a whole run, or a part of one."""

from __future__ import annotations

import math

_FIRST_WAIT_SECONDS = 0.5


class Restarts:
    """A budget of ``most`` restarts within any ``window_seconds``, or since the last progress.

    So a run of weeks may lose many ranks, and one that dies at once may not go on for ever. The
    first restart comes at once, those that follow after 0.5, 1, 2, ... seconds: what came to grief
    by chance costs no time, and what cannot work does not burn the others'.
    """

    def __init__(
        self, most: int, window_seconds: float = math.inf, longest_wait_seconds: float = 30.0
    ) -> None:
        self.most = most
        self.window_seconds = window_seconds
        self.longest_wait_seconds = longest_wait_seconds
        self.num_in_all = 0
        self._moments: list[float] = []
        self._furthest = 0

    @property
    def num_counted(self) -> int:
        """How much of the budget is used up."""
        return len(self._moments)

    def progressed(self) -> None:
        """Something was achieved that the next restart does not have to do again."""
        self._moments.clear()

    def progressed_to(self, step: int) -> None:
        """The next restart goes on after this step: progress, if none did so before."""
        if step > self._furthest:
            self._furthest = step
            self.progressed()

    def next_wait_seconds(self, now: float) -> float | None:
        """Take one restart from the budget: how long to wait first; ``None`` if none is left."""
        self._moments = [at for at in self._moments if now - at < self.window_seconds]
        num_before = self.num_counted
        if num_before >= self.most:
            return None
        self._moments.append(now)
        self.num_in_all += 1
        if num_before == 0:
            return 0.0
        # An exponent without end would be more than a float can hold.
        doubled = _FIRST_WAIT_SECONDS * 2.0 ** min(num_before - 1, 60)
        return min(self.longest_wait_seconds, doubled)
