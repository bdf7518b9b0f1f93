"""The answers that the actors of this process wait for at this moment, by thread or task."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from monarch.runtime.context import Running
from monarch.runtime.promise import Promise


class Wait(NamedTuple):
    """A wait of an actor for an answer.

    Two waits are equal only if they belong to the same call and the same promise.
    """

    running: Running
    promise: Promise[Any]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Wait)
            and self.running is other.running
            and self.promise is other.promise
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((id(self.running), id(self.promise)))


waits: dict[Hashable, Wait] = {}
"""By the number of the thread that is blocked, or the task that awaits. From any thread."""
