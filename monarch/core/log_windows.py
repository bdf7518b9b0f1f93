"""Which lines are aggregated together, and when the result is shown.

A group of procs has one window for each stream. It opens with a line, and closes when its time is
up, when the group gets another window length, or when everything is flushed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from monarch.core.log_aggregation import Aggregator, LineSource, Summary


class Closed(NamedTuple):
    """A window that is ready to be shown: lines of ``stream`` (1 or 2) since ``opened_at``."""

    stream: int
    opened_at: float
    summary: Summary


class _Key(NamedTuple):
    group: str
    seconds: float
    stream: int


class _Window:
    def __init__(self, opened_at: float, deadline: float) -> None:
        self.lines = Aggregator()
        self.opened_at = opened_at
        self.deadline = deadline


class LogWindows:
    """All aggregation windows of a client. Times are seconds on any one clock."""

    def __init__(self) -> None:
        self._length: dict[str, tuple[str, float]] = {}
        self._open: dict[_Key, _Window] = {}

    def assign(self, members: Iterable[str], group: str, seconds: float, now: float) -> None:
        """Aggregate the lines of ``members``, together as ``group``, in windows of ``seconds``.

        0 seconds ends the aggregation. If a window of the group is open, it closes at its own
        deadline or ``seconds`` from ``now``, whichever is earlier.
        """
        for member in members:
            self._length.pop(member, None)
            if seconds > 0:
                self._length[member] = (group, seconds)
        for key, window in self._open.items():
            if key.group == group:
                window.deadline = min(window.deadline, now + seconds)

    def forget(self, member: str) -> None:
        """Note that a member has ended and prints no more lines."""
        self._length.pop(member, None)

    def is_aggregated(self, member: str, host: str) -> bool:
        """Return whether lines of this proc go into a window.

        If the proc itself was not passed to ``assign``, that is decided by its ``host``.
        """
        return member in self._length or host in self._length

    def add(
        self,
        member: str,
        host: str,
        stream: int,
        source: LineSource,
        lines: Sequence[str],
        now: float,
    ) -> None:
        """Add lines of a proc that ``is_aggregated``."""
        group, seconds = self._length.get(member) or self._length[host]
        key = _Key(group, seconds, stream)
        window = self._open.get(key)
        if window is None:
            window = self._open[key] = _Window(now, now + seconds)
        add = window.lines.add
        for line in lines:
            add(line, source)

    @property
    def next_deadline(self) -> float | None:
        """The time at which the next window closes; None if no window is open."""
        return min((window.deadline for window in self._open.values()), default=None)

    def due(self, now: float) -> list[Closed]:
        """Close and return the windows whose time is up."""
        return self._close([key for key, w in self._open.items() if w.deadline <= now])

    def flush(self) -> list[Closed]:
        """Close all windows and return them."""
        return self._close(list(self._open))

    def _close(self, keys: list[_Key]) -> list[Closed]:
        closed = []
        for key in keys:
            window = self._open.pop(key)
            closed.append(Closed(key.stream, window.opened_at, window.lines.take()))
        return closed
