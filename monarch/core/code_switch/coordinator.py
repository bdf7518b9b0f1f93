"""The coordinator of a code switch asks, counts the votes, and decides. See ``table``.

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

from collections.abc import Callable, Sequence
from typing import NamedTuple

from monarch.core.code_switch.table import (
    COORDINATOR,
    CoordinatorState,
    IllegalEvent,
    Said,
    SwitchOrder,
    Vote,
    next_of,
)

HOSTS = -1
"""The party that keeps the files. The others are owners, by their place among them."""

_SHORTEST_SECONDS = 0.3
_LONGEST_SECONDS = 76.8
_HALT_SECONDS = (0.5, 1.0, 2.0, 4.0)
_SHORTEST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 2.0


class AskParty(NamedTuple):
    """Send an order; the answer is to be given to ``voted`` with this ``number``.

    ``attempt`` counts the fences. An owner does not see what waits behind the fence of another, so
    its own fence ``is_held`` from the beginning where it is not the first.
    """

    number: int
    party: int
    order: SwitchOrder
    attempt: int = 0
    seconds: float = 0.0
    is_held: bool = False


class Pause(NamedTuple):
    """Wait, and then call ``woke``."""

    seconds: float


Effect = AskParty | Pause


class Coordinator:
    """The coordinator of a switch of so many owners.

    ``draw`` gives a random number between 0 and its argument. Events are methods; each returns the
    effects to carry out, in order. Once it is ``over`` there are none any more. One that
    ``is_successor`` has taken the place of an author.
    """

    def __init__(self, num_owners: int, draw: Callable[[float], float]) -> None:
        self.state = CoordinatorState.IDLE
        self._draw = draw
        self._owners = list(range(num_owners))
        self._number = 0
        self._open: dict[int, AskParty] = {}
        self._votes: list[Vote] = []
        self._attempt = 0
        self._seconds = _SHORTEST_SECONDS
        self._halts = [*_HALT_SECONDS]
        self._has_shown = False
        self._is_released = False
        self.is_successor = False

    @property
    def is_over(self) -> bool:
        return self.state in (CoordinatorState.COMMITTED, CoordinatorState.ABORTED)

    @property
    def is_decided(self) -> bool:
        """Whether there is only one way any more: all are told to go on, or to go back."""
        if self.state is CoordinatorState.RELEASING:
            return self._is_released
        return self.state in _TOLERANT

    def is_open(self, number: int) -> bool:
        """Whether this is still asked."""
        return number in self._open

    def is_last(self, number: int) -> bool:
        """Whether all others have answered."""
        return [*self._open] == [number]

    def begin(self) -> Sequence[Effect]:
        """Drive a switch from its beginning."""
        return self._move(Said.BEGIN)

    def recover(self) -> Sequence[Effect]:
        """Take the place of an author that has died, and bring its switch to one end for all.

        Owners that are lost do not count: the author may have had the others go already.
        """
        self.is_successor = True
        return self._move(Said.RECOVER)

    def releases(self) -> None:
        """The first order to go is sent. From here on, one may have gone."""
        self._is_released = True

    def voted(self, number: int, vote: Vote) -> Sequence[Effect]:
        """A party has answered. Its answer to what is not asked any longer says nothing."""
        asked = self._open.pop(number, None)
        if asked is None:
            if not 0 < number <= self._number:
                raise IllegalEvent(f"nobody was asked number {number}")
            return []
        if vote is Vote.GONE and asked.party in self._owners:
            self._owners.remove(asked.party)
            is_tolerant = self.is_successor or self.state in _TOLERANT
            if Said.LOST in COORDINATOR[self.state] and not is_tolerant:
                return self._move(Said.LOST)
        self._votes.append(vote)
        if self.state is CoordinatorState.FENCING and vote is Vote.YES and not self._open:
            later = [owner for owner in self._owners if owner > asked.party]
            if later:
                return self._cast(later[0], is_held=True)
        return [] if self._open else self._move(self._said())

    def unchanged(self) -> Sequence[Effect]:
        """All have prepared, and no process has anything to switch."""
        self._open.clear()
        return self._move(Said.UNCHANGED)

    def refused(self) -> Sequence[Effect]:
        """The author refuses, though all have voted yes."""
        return self._move(Said.NO)

    def interrupted(self) -> Sequence[Effect]:
        """The author wants to stop (Ctrl-C), or cannot go on. Too late once it is decided."""
        if self.is_decided:
            return []
        return self._move(Said.LOST)

    def woke(self) -> Sequence[Effect]:
        return self._move(Said.WOKE)

    def _said(self) -> Said:
        """The event that the votes come to."""
        votes = self._votes
        if self.state is CoordinatorState.INQUIRING:
            if Vote.WENT in votes:
                return Said.WENT
            return Said.NONE if Vote.LATE in votes or Vote.NO in votes else Said.ALL
        if self.state in (CoordinatorState.INSPECTING, CoordinatorState.DROPPING):
            return {Vote.YES: Said.ALL, Vote.SOME: Said.SOME}.get(votes[0], Said.NONE)
        if self.state in _TOLERANT:
            return Said.ALL
        if Vote.NO in votes or Vote.SOME in votes:
            return Said.NO
        if Vote.LATE not in votes:
            return Said.ALL
        return Said.NO if self.state is CoordinatorState.HALTING and not self._halts else Said.LATE

    def _move(self, said: Said) -> Sequence[Effect]:
        before, self.state = self.state, next_of(COORDINATOR, self.state, said)
        if before is CoordinatorState.LIFTING and said is Said.LATE:
            self._seconds = self._longer()
        return self._enter()

    def _enter(self) -> Sequence[Effect]:
        self._open.clear()
        self._votes.clear()
        stage = self.state
        if stage is CoordinatorState.FENCING:
            self._attempt += 1
            return self._cast(self._owners[0]) if self._owners else self._move(Said.ALL)
        if stage is CoordinatorState.LIFTING:
            return self._lift()
        if stage is CoordinatorState.PAUSING:
            longest = _SHORTEST_PAUSE_SECONDS * 2**self._attempt
            return [Pause(self._draw(min(_LONGEST_PAUSE_SECONDS, longest)))]
        if stage is CoordinatorState.HALTING:
            return self._ask_owners(SwitchOrder.HALT, self._halts.pop(0))
        if stage is CoordinatorState.SHOWING:
            self._has_shown = True
            return [self._ask(HOSTS, SwitchOrder.SHOW_FILES)]
        if stage is CoordinatorState.UNDOING:
            back = SwitchOrder.TAKE_BACK_FILES if self._has_shown else SwitchOrder.DROP_FILES
            return [self._ask(HOSTS, back)]
        if stage is CoordinatorState.INSPECTING:
            self._has_shown = True
            return [self._ask(HOSTS, SwitchOrder.INSPECT_FILES)]
        if stage is CoordinatorState.DROPPING:
            return [self._ask(HOSTS, SwitchOrder.DROP_FILES)]
        order = _ORDERS.get(stage)
        return [] if order is None else self._ask_owners(order)

    def _lift(self) -> Sequence[Effect]:
        """Lifts the fence: all owners are asked to go on before any answer is waited for."""
        first, *others = self._owners or [0]
        order, longer = SwitchOrder.LIFT, self._longer()
        return [
            *(self._ask(owner, order, self._attempt) for owner in others),
            *(self._ask(owner, order, self._attempt, longer) for owner in (first, *others)),
        ]

    def _longer(self) -> float:
        return min(2 * self._seconds, _LONGEST_SECONDS)

    def _cast(self, owner: int, *, is_held: bool = False) -> Sequence[Effect]:
        return [self._ask(owner, SwitchOrder.FENCE, self._attempt, self._seconds, is_held)]

    def _ask_owners(self, order: SwitchOrder, seconds: float = 0.0) -> Sequence[Effect]:
        asked = [self._ask(owner, order, self._attempt, seconds) for owner in self._owners]
        return asked or self._move(Said.ALL)

    def _ask(
        self, party: int, order: SwitchOrder, attempt: int = 0, seconds: float = 0.0,
        is_held: bool = False,
    ) -> AskParty:  # fmt: skip
        self._number += 1
        asked = AskParty(
            number=self._number,
            party=party,
            order=order,
            attempt=attempt,
            seconds=seconds,
            is_held=is_held,
        )
        self._open[self._number] = asked
        return asked


_TOLERANT = (CoordinatorState.RELEASING, CoordinatorState.UNDOING, CoordinatorState.REVERTING)
"""In these no vote changes the outcome, and the switch goes on without an owner that is lost."""

_ORDERS = {
    CoordinatorState.INQUIRING: SwitchOrder.INQUIRE,
    CoordinatorState.PREPARING: SwitchOrder.PREPARE,
    CoordinatorState.PATCHING: SwitchOrder.PATCH,
    CoordinatorState.RELEASING: SwitchOrder.GO,
    CoordinatorState.REVERTING: SwitchOrder.REVERT,
}
