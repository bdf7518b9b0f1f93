"""The coordinator of a code switch, which is the owner of the procs, orders and decides.

How long a fence may hold a process up:

- A fence may fall so that one actor stands at it while another, in the middle of a message, waits
  for that one's next: a deadlock. Or one is in a long message, and for so long all that its owner
  sends to others would wait.
- So a fence is lifted that has held a process up for some time and that not all have come to. All
  go on as before it, and after a pause another is cast. One that holds up no process stays.
- If all come past it at once when it was lifted, it was a deadlock: the next one comes after a
  short pause, of random length, and may fall better.
- Otherwise some process is busy. The pause ends when they come past it, or lasts as long as the
  next fence may hold one up, which is twice as long as the last. So half of the time all go on,
  and however long a message takes, there will be a fence that stays until its end.
- Once all stand, they are halted. An actor that cannot be halted may be waiting for one that
  stands. Then, too, all go on, and the halt after the next fence may take longer. After some, the
  switch is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from monarch.core.code_switch.table import COORDINATOR, CoordinatorState, Said, Vote, next_of
from monarch.wire.message import Order, SwitchOrder

HOST_ORDERS = (SwitchOrder.SHOW_FILES, SwitchOrder.TAKE_BACK_FILES, SwitchOrder.DROP_FILES)
"""Orders for the hosts, which keep the files. The others are for the owner's own participant."""

_SHORTEST_SECONDS = 0.3
_LONGEST_SECONDS = 76.8
_HALT_SECONDS = (0.5, 1.0, 2.0, 4.0)
_SHORTEST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 2.0


class Pause(NamedTuple):
    """Wait, and then call ``woke``."""

    seconds: float


Effect = Order | Pause


class Coordinator:
    """The coordinator of the switch to ``generation``, once all have prepared.

    ``draw`` gives a random number between 0 and its argument. Events are methods; each returns what
    to do next, an order or a pause; nothing, once it ``is_over``.
    """

    def __init__(self, generation: int, draw: Callable[[float], float]) -> None:
        self.state = CoordinatorState.IDLE
        self._generation = generation
        self._draw = draw
        self._attempt = 0
        self._seconds = _SHORTEST_SECONDS
        self._halts = [*_HALT_SECONDS]
        self._has_shown = False
        self._is_released = False

    @property
    def is_over(self) -> bool:
        return self.state in (CoordinatorState.COMMITTED, CoordinatorState.ABORTED)

    @property
    def is_decided(self) -> bool:
        """Whether the outcome is certain: all parties are told to continue, or to go back."""
        if self.state is CoordinatorState.RELEASING:
            return self._is_released
        return self.state in _TOLERANT or self.is_over

    def begin(self) -> Effect | None:
        return self._move(Said.BEGIN)

    def releases(self) -> None:
        """The order to go is sent. From here on, a proc may have gone."""
        self._is_released = True

    def voted(self, vote: Vote) -> Effect | None:
        """Handle the vote of a party on the last order: done, or refused."""
        if self.state in _TOLERANT or vote is Vote.YES:
            return self._move(Said.ALL)
        is_last = self.state is CoordinatorState.HALTING and not self._halts
        return self._move(Said.LATE if vote is Vote.LATE and not is_last else Said.NO)

    def interrupted(self) -> Effect | None:
        """The author wants to stop (Ctrl-C). Not to be called once it ``is_decided``."""
        return self._move(Said.LOST)

    def woke(self) -> Effect | None:
        return self._move(Said.WOKE)

    def _move(self, said: Said) -> Effect | None:
        before, self.state = self.state, next_of(COORDINATOR, self.state, said)
        if before is CoordinatorState.LIFTING and said is Said.LATE:
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
