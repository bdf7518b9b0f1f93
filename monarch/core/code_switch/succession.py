"""Which owner takes the place of an author that has died: the first in the push that lives.

All owners of a push have to come to one end, so one of them drives it for all. The others ask it
to, and do as it says. It may die as well, and then the next one does, with a greater term. An owner
that has switched already takes part: it knows what the author had decided.
"""

from __future__ import annotations

from collections.abc import Sequence


class Succession:
    """As the owner ``me`` of a push to ``owners`` sees it. The order is the same for all."""

    def __init__(self, owners: Sequence[str], me: str) -> None:
        self._owners = [*owners] if me in owners else [*owners, me]
        self._me = me
        self.term = 1 + self._owners.index(me)

    def lost(self, owner: str) -> None:
        """This one is gone, or cannot be reached."""
        if owner != self._me and owner in self._owners:
            self._owners.remove(owner)

    def first(self) -> str:
        """The owner that is to end the switch."""
        return self._owners[0]

    def others(self) -> list[str]:
        """The owners that we lead when we are the first: all but ourselves."""
        return [owner for owner in self._owners if owner != self._me]
