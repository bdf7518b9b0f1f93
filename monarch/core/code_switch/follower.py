"""A participant of a code switch as a follower: whose orders count for it, and how far it is; and
whose count at a host."""

from __future__ import annotations

from collections import deque

from monarch.core.code_switch.table import (
    PARTICIPANT,
    IllegalEvent,
    ParticipantState,
    Said,
    SwitchOrder,
    author_of,
    next_of,
    term_of,
)

_NUM_WENT = 32
_MOST_KEPT = 32


class Follower:
    """Obeys one ``coordinator`` at a time: the author of a push, or, where that has died, the owner
    that has taken its place last.

    ``went`` are the last pushes that it went to, by author and generation: they are decided.
    """

    def __init__(self) -> None:
        self.state = ParticipantState.IDLE
        self.coordinator = ""
        self.generation = 0
        self.went: deque[tuple[str, int]] = deque(maxlen=_NUM_WENT)

    @property
    def is_idle(self) -> bool:
        return self.state is ParticipantState.IDLE

    def accepts(self, sender: str) -> bool:
        """Whether ``prepare`` of this one would be obeyed."""
        is_again = sender == self.coordinator and self.state is not ParticipantState.REVERTING
        return self.is_idle or is_again

    def is_led_by(self, author: str) -> bool:
        """Whether it still is in a switch of this author, for all it knows."""
        return self.coordinator == author and not self.is_idle

    def _knows(self, sender: str, generation: int) -> bool:
        """Whether this one may give orders. A successor may from when it gives the first, which
        says that the author, or an earlier successor, has died."""
        if generation != self.generation or self.is_idle:
            return False
        is_later = term_of(sender) > term_of(self.coordinator)
        if is_later and self.coordinator and author_of(sender) == author_of(self.coordinator):
            self.coordinator = sender
        return sender == self.coordinator

    def _went_with(self, sender: str, generation: int) -> bool:
        """Whether we went to this push of an author, or of the one in whose place it orders."""
        return (author_of(sender), generation) in self.went

    def _expect(self, order: SwitchOrder, sender: str, generation: int) -> None:
        """Enter the state that an order leads to, if its sender may give it."""
        if not self._knows(sender, generation):
            raise IllegalEvent(
                f"{order.value!r} of generation {generation} by {sender!r}, in the middle of "
                f"{self.generation} by {self.coordinator!r} ({self.state.value})"
            )
        self._go_to(order)

    def _go_to(self, event: SwitchOrder | Said) -> None:
        self.state = next_of(PARTICIPANT, self.state, event)


class HostTerms:
    """Whose orders count at a host that has the files of a push.

    It takes part in no barrier, and so has no state in a switch: an order of the author, or of an
    owner that has taken its place, counts unless one of a later term has come before it.
    """

    def __init__(self) -> None:
        self._latest: dict[tuple[str, int], int] = {}

    def begins(self, author: str, generation: int) -> None:
        """The author lives, and has begun a push of this number, perhaps once more."""
        self._latest.pop((author, generation), None)

    def obeys(self, sender: str, generation: int) -> bool:
        """Whether an order counts that is given in this name. From then on none of an earlier term
        does."""
        push, term = (author_of(sender), generation), term_of(sender)
        if term < self._latest.get(push, term):
            return False
        if term >= 0:
            self._latest[push] = term
            while len(self._latest) > _MOST_KEPT:
                del self._latest[next(iter(self._latest))]
        return True
