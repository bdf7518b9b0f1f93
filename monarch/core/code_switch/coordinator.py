"""The coordinator of a code switch: the owner of the procs, which gives the orders and decides.

How long a fence may delay a process:

- A fence may fall so that one actor waits at it while another, in the middle of a message, waits
  for the first actor's next answer: a deadlock. Or an actor is in a long message, and all other
  messages of its owner would wait for its end.
- So a fence is lifted if it has delayed a process for some time and not all actors have reached it.
  All go on as before it, and after a pause another fence is sent. A fence that delays no process
  stays.
- If all actors pass it as soon as it is lifted, it was a deadlock: the next fence comes after a
  short pause, of random length, and may fall better.
- Otherwise some process is busy. The pause ends when all have passed the fence, or after the time
  that the next fence may delay a process, which is twice that of the last. So half of the time all
  go on, and however long a message takes, some fence stays until its end.
- Once all actors have reached the fence, they are halted. An actor that cannot be halted may wait
  for one at the fence. Then, too, all go on, and the halt after the next fence may take longer.
  After some tries, the switch is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from monarch.core.code_switch.table import COORDINATOR, CoordinatorState, SwitchEvent, Vote, next_of
from monarch.wire.message import Order, SwitchOrder

HOST_ORDERS = (SwitchOrder.SHOW_FILES, SwitchOrder.TAKE_BACK_FILES, SwitchOrder.DROP_FILES)
"""Orders for the hosts, which keep the files. The others are for the owner's own participant."""

FENCE_SECONDS = 0.3
_LONGEST_SECONDS = 76.8
_HALT_SECONDS = (0.5, 1.0, 2.0, 4.0)
_SHORTEST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 2.0


class Pause(NamedTuple):
    """Wait for so many ``seconds``, and then call ``Coordinator.woke``."""

    seconds: float


Effect = Order | Pause


class Coordinator:
    """The coordinator of the switch to ``generation``, once all have prepared.

    ``draw`` returns a random number between 0 and its argument. The first fence stays for
    ``fence_seconds``, and each later fence for longer. Events are methods; each returns the next
    order or pause, or None when the switch ``is_over``.
    """

    def __init__(
        self, generation: int, draw: Callable[[float], float], fence_seconds: float = FENCE_SECONDS
    ) -> None:
        self.state = CoordinatorState.IDLE
        self._generation = generation
        self._draw = draw
        self._attempt = 0
        self._seconds = fence_seconds
        self._halts = [*_HALT_SECONDS]
        self._has_shown = False
        self._is_released = False

    @property
    def is_over(self) -> bool:
        return self.state in (CoordinatorState.COMMITTED, CoordinatorState.ABORTED)

    @property
    def is_decided(self) -> bool:
        """Whether the outcome is certain: all parties are ordered to continue, or to revert."""
        if self.state is CoordinatorState.RELEASING:
            return self._is_released
        return self.state in _TOLERANT or self.is_over

    def begin(self) -> Effect | None:
        return self._move(SwitchEvent.BEGIN)

    def releases(self) -> None:
        """Note that the first order to go is sent: from now on, a proc may run the new code."""
        self._is_released = True

    def voted(self, vote: Vote) -> Effect | None:
        """Handle the vote of all parties on the last order; return what to do next."""
        if self.state in _TOLERANT or vote is Vote.YES:
            return self._move(SwitchEvent.ALL)
        is_last = self.state is CoordinatorState.HALTING and not self._halts
        return self._move(SwitchEvent.LATE if vote is Vote.LATE and not is_last else SwitchEvent.NO)

    def interrupted(self) -> Effect | None:
        """Handle an interrupt of the author (Ctrl-C), and return what to do next. Do not call it
        when ``is_decided`` is true.
        """
        return self._move(SwitchEvent.LOST)

    def woke(self) -> Effect | None:
        return self._move(SwitchEvent.WOKE)

    def _move(self, event: SwitchEvent) -> Effect | None:
        earlier, self.state = self.state, next_of(COORDINATOR, self.state, event)
        if earlier is CoordinatorState.LIFTING and event is SwitchEvent.LATE:
            self._seconds = self._longer()
        state = self.state
        if state is CoordinatorState.FENCING:
            self._attempt += 1
            return self._order(SwitchOrder.FENCE, self._seconds)
        if state is CoordinatorState.LIFTING:
            return self._order(SwitchOrder.LIFT, self._longer())
        if state is CoordinatorState.PAUSING:
            longest = _SHORTEST_PAUSE_SECONDS * 2**self._attempt
            return Pause(self._draw(min(_LONGEST_PAUSE_SECONDS, longest)))
        if state is CoordinatorState.HALTING:
            return self._order(SwitchOrder.HALT, self._halts.pop(0))
        if state is CoordinatorState.UNDOING:
            return self._order(
                SwitchOrder.TAKE_BACK_FILES if self._has_shown else SwitchOrder.DROP_FILES
            )
        self._has_shown |= state is CoordinatorState.SHOWING
        kind = _ORDERS.get(state)
        return None if kind is None else self._order(kind)

    def _longer(self) -> float:
        return min(_LONGEST_SECONDS, 2 * self._seconds)

    def _order(self, kind: SwitchOrder, seconds: float = 0.0) -> Order:
        return Order(kind, self._generation, self._attempt, seconds)


_TOLERANT = (CoordinatorState.RELEASING, CoordinatorState.UNDOING, CoordinatorState.REVERTING)
"""In these no vote changes the outcome."""

_ORDERS = {
    CoordinatorState.SHOWING: SwitchOrder.SHOW_FILES,
    CoordinatorState.PATCHING: SwitchOrder.PATCH,
    CoordinatorState.RELEASING: SwitchOrder.GO,
    CoordinatorState.REVERTING: SwitchOrder.REVERT,
}
