"""Which owner takes the place of an author that has died: the first in the push that lives.

All owners of a push have to come to one end, so one of them drives it for all. The others ask it
to, and do as it says. It may die as well, and then the next one does. An owner that has switched
already takes part: it knows what the author had decided.
"""

from __future__ import annotations

from collections.abc import Sequence

from monarch.core.code_switch.participant import Participant
from monarch.core.code_switch.table import MAY_BE_SHOWN, Vote, successor_of


class Succession:
    """As the owner ``me`` of a push to ``owners`` sees it. The order is the same for all."""

    def __init__(self, owners: Sequence[str], me: str) -> None:
        self._owners = [*owners] if me in owners else [*owners, me]
        self._me = me

    def lost(self, owner: str) -> None:
        """This one is gone, or cannot be reached."""
        if owner != self._me and owner in self._owners:
            self._owners.remove(owner)

    def first(self) -> str:
        """Who is to end the switch."""
        return self._owners[0]

    def others(self) -> list[str]:
        """Whom to lead, beside ourselves, as the first."""
        return [owner for owner in self._owners if owner != self._me]


def is_led(machine: Participant, author: str) -> bool:
    """Whether it still is in a switch of this author, for all it knows."""
    return machine.coordinator == author and not machine.is_idle


def shown(machine: Participant, author: str, generation: int) -> Vote | None:
    """Whether hosts show the files of this push, as a participant knows: ``None`` where they may or
    may not."""
    if machine.went == (successor_of(author), generation):
        return Vote.YES
    is_it = (successor_of(machine.coordinator), machine.generation) == (
        successor_of(author), generation,
    )  # fmt: skip
    is_halted = is_it and machine.state in MAY_BE_SHOWN
    return None if is_halted else Vote.NO
