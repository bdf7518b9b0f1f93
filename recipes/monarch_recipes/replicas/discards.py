"""Counts steps that are discarded in a row for the same reason.

When a process dies in a step, the step is discarded, and the next step is made without that
process. So a reason that repeats is of another kind: processes share a GPU, which NCCL refuses, or
a network blocks connections. Time is an argument, in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

NUM_ALIKE = 5
"""After so many discards of a group in a row with the same reason, further tries are hopeless."""

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
_MOST_CHARACTERS = 400
# Ports, addresses, steps and times, which differ each time.
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True)
class Discard:
    """The last discarded step of a group. It is the ``count``-th in a row with this reason."""

    step: int
    reason: str
    count: int

    @property
    def is_hopeless(self) -> bool:
        """Whether so many steps were discarded for one reason that further tries are pointless."""
        return self.count >= NUM_ALIKE

    @property
    def pause_seconds(self) -> float:
        """The seconds to wait before the next try: the cause may pass. 0 after one discard."""
        if self.count < 2:
            return 0.0
        return min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** (self.count - 1))


class Discards:
    """The discarded steps of all groups of a run, each since the group's last committed step."""

    def __init__(self) -> None:
        self._last: dict[int, Discard] = {}

    def add(self, group: int, step: int, reason: str, *, has_waited: bool) -> Discard:
        """Count a discarded step of a group, and return its `Discard`.

        ``has_waited`` means that the group waited for others until its time was up. That is not
        counted, because a group that hangs is found and restarted.
        """
        last = self._last.get(group)
        is_alike = last is not None and _shape(last.reason) == _shape(reason)
        count = last.count if last is not None and is_alike else 0
        self._last[group] = discard = Discard(step, reason, max(1, count + (not has_waited)))
        return discard

    def of(self, group: int) -> Discard | None:
        """Return the last discard of a group.

        Returns None if the group committed a step or was lost since.
        """
        return self._last.get(group)

    def end(self, group: int) -> Discard | None:
        """Forget a group's discards when it commits a step or is lost.

        Return the last one, or None.
        """
        return self._last.pop(group, None)


def reason_of(errors: Iterable[str | None]) -> str:
    """Return the reason for a discarded step in one line, from the errors of the group's ranks."""
    # TorchFT adds the traceback.
    texts = [error.partition("\nTraceback (most")[0] for error in errors if error]
    lines = [line.strip() for text in texts for line in text.split("\n")]
    text = "; ".join(dict.fromkeys(filter(None, lines)))
    return text.replace(":; ", ": ")[:_MOST_CHARACTERS]


def _shape(reason: str) -> str:
    return _NUMBER.sub("#", reason)
