"""How an author brings all actors of all owners to a stop, and how long that may hold anybody up.

The rules:

- A fence may fall so that one actor stands at it while another, in the middle of a message, waits
  for that one's next. Neither would ever move. Or one is in a long message, and for so long all
  that its owner sends to others would wait.
- So a fence is given up that has held somebody up for some time and that not all have come to:
  all go on as before it, and after a pause another is cast. One that holds up nobody stays.
- If all come past it at once when it was given up, they had waited for one another: the next one
  comes after a short pause, of random length, and may fall better.
- Otherwise somebody is busy. The pause ends when they come past it, or lasts as long as the next
  fence may hold anybody up, which is twice as long as the last: half of the time all go on, and
  however long a message takes, there will be a fence that stays until its end.
- Once all stand, they are halted. Who cannot be halted may wait for one who stands: then, too, all
  go on, and the halt after the next fence may take longer. After some, the push is refused.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence

from monarch.runtime.workspace.pushing.owner import Owner
from monarch.runtime.workspace.reload_plan import ReloadOutcome

__all__ = ["Standstill"]

_SHORTEST_SECONDS = 0.3
_LONGEST_SECONDS = 76.8
_HALT_SECONDS = (0.5, 1.0, 2.0, 4.0)
_SHORTEST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 2.0


class Standstill:
    """Of all that ``owners`` own, for a generation that they have prepared."""

    def __init__(self, generation: int, owners: Sequence[Owner]) -> None:
        self._generation = generation
        self._owners = owners

    def reach(self) -> ReloadOutcome:
        """Wait until all stand still; refused where that cannot be."""
        halts = [*_HALT_SECONDS]
        seconds = _SHORTEST_SECONDS
        for attempt in itertools.count(1):
            outcome = self._fence(attempt, seconds)
            if not (outcome.refused or outcome.late):
                outcome = self._halt(halts.pop(0))
                if not halts:
                    outcome.refused += outcome.late
            if outcome.refused or not outcome.late:
                break
            seconds = self._go_on(attempt, seconds)
        return outcome

    def _fence(self, attempt: int, seconds: float) -> ReloadOutcome:
        outcome = ReloadOutcome()
        for owner in self._owners:
            # What waits behind the fence of another owner is not seen by this one.
            is_held = owner is not self._owners[0]
            outcome.add(owner.fence(self._generation, attempt, seconds, is_held=is_held))
            if outcome.refused or outcome.late:
                break
        return outcome

    def _halt(self, seconds: float) -> ReloadOutcome:
        return self._ask(lambda owner: owner.halt(self._generation, seconds))

    def _go_on(self, attempt: int, seconds: float) -> float:
        """Give the fence up for a while; gives how long the next may hold somebody up."""
        number, longer = self._generation, min(2 * seconds, _LONGEST_SECONDS)
        for owner in self._owners[1:]:
            owner.lift(number, attempt, 0.0)
        if self._ask(lambda owner: owner.lift(number, attempt, longer)).late:
            return longer
        longest = min(_LONGEST_PAUSE_SECONDS, _SHORTEST_PAUSE_SECONDS * 2**attempt)
        time.sleep(random.uniform(0, longest))
        return seconds

    def _ask(self, action: Callable[[Owner], ReloadOutcome]) -> ReloadOutcome:
        outcome = ReloadOutcome()
        for owner in self._owners:
            outcome.add(action(owner))
        return outcome
