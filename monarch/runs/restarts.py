"""How often, and how soon, a run that lost a rank is begun again."""

from __future__ import annotations

__all__ = ["Restarts"]

_FIRST_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 30.0


class Restarts:
    """A budget of ``most`` restarts in a row that bring the run no further.

    Progress fills it up again: a run of weeks may lose many ranks, one that dies at once may not
    go on for ever. The first restart comes at once, later ones after 1, 2, 4, ... seconds.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.num_in_a_row = 0
        self.num_in_all = 0

    def progressed(self) -> None:
        """Something was achieved that the next restart does not have to do again."""
        self.num_in_a_row = 0

    def next_wait_seconds(self) -> float | None:
        """Take one restart from the budget: how long to wait first; ``None`` if none is left."""
        if self.num_in_a_row >= self.most:
            return None
        waited = self.num_in_a_row
        self.num_in_a_row += 1
        self.num_in_all += 1
        if waited == 0:
            return 0.0
        return float(min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2.0 ** (waited - 1)))
