"""Counts steps that are discarded in a row for one reason.

A step is discarded where somebody in it has died, and the one after it is made without that one. So
reasons that stay are of another kind: processes that share a GPU where NCCL refuses that, a network
that lets nobody through. Time is an argument, in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

NUM_ALIKE = 5
"""Discards in a row, of one group and for one reason, after which it is given up."""

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
_MOST_CHARACTERS = 400
# Ports, addresses, steps and times, which are others each time.
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True)
class Discard:
    """The last discarded step of a group, which is the ``count``-th in a row for its reason."""

    step: int
    reason: str
    count: int

    @property
    def is_hopeless(self) -> bool:
        """Whether further ones would come to the same."""
        return self.count >= NUM_ALIKE

    @property
    def pause_seconds(self) -> float:
        """Return how many seconds to wait before the next try, for causes that may pass."""
        if self.count < 2:
            return 0.0
        return min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** (self.count - 1))


class Discards:
    """The discards of all groups of a run, each since its last committed step."""

    def __init__(self) -> None:
        self._last: dict[int, Discard] = {}

    def add(self, group: int, step: int, reason: str, *, has_waited: bool) -> Discard:
        """A group has made ``step`` in vain. ``has_waited``: it has waited for others as long as it
        may, which says nothing of the next step: who hangs is found out and started again."""
        before = self._last.get(group)
        is_alike = before is not None and _shape(before.reason) == _shape(reason)
        count = before.count if before is not None and is_alike else 0
        self._last[group] = now = Discard(step, reason, max(1, count + (not has_waited)))
        return now

    def of(self, group: int) -> Discard | None:
        """The last one of a group; None where it has committed a step, or was lost, since."""
        return self._last.get(group)

    def end(self, group: int) -> Discard | None:
        """The group has committed a step, or is lost; the last of those that were in vain."""
        return self._last.pop(group, None)


def reason_of(errors: Iterable[str | None]) -> str:
    """The reason for a discard in one line, of the errors of the group's ranks."""
    # TorchFT adds where it came from.
    texts = [error.partition("\nTraceback (most")[0] for error in errors if error]
    lines = [line.strip() for text in texts for line in text.split("\n")]
    text = "; ".join(dict.fromkeys(filter(None, lines)))
    return text.replace(":; ", ": ")[:_MOST_CHARACTERS]


def _shape(reason: str) -> str:
    return _NUMBER.sub("#", reason)
