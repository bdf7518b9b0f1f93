"""Condenses the lines that ranks print at about the same time, and keeps their order.

- Consecutive lines of one rank that differ only in numbers, such as those of a kernel's assertion
  that fails in many threads: the first line, and how many more there are.
- Lines that several ranks print: once, with the ranks. Warnings and assertions may differ in
  numbers.

Other text stays as it is, and in its place: a traceback is not torn apart.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from monarch.core.log_aggregation import LineSource
from monarch.mesh.ranges import ranges_of

_LEAST_ALIKE = 4
"""So many lines in a row that differ only in numbers are condensed."""

_HOLD_SECONDS = 0.3
_ALARM_SECONDS = 0.8  # Ranks import the same library at about the same time.
_MOST_LINES = 5_000
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")
_ALARM = re.compile(r"warning|\[W\d|Assertion `", re.IGNORECASE)
# Put before records by `runtime/cells/actor_log.py`; the label says it here.
_ACTOR = re.compile(r"\[actor=<root>[^\n]*?>\] ")


class PrintedLine(NamedTuple):
    """A line, without its end; ``stream`` is 1 or 2."""

    source: LineSource
    text: str
    stream: int = 2


class SharedLines(NamedTuple):
    """Lines that all ``sources`` have printed."""

    sources: tuple[LineSource, ...]
    lines: tuple[str, ...]
    stream: int = 2

    @property
    def label(self) -> str:
        """The label: ``titan 0``, or ``titan`` for several ranks."""
        first = self.sources[0]
        return f"{first.name} {first.rank}" if len(self.sources) == 1 else first.name

    @property
    def text(self) -> tuple[str, ...]:
        """The lines as text. If several ranks have printed them, the first line names the ranks."""
        if len(self.sources) == 1:
            return self.lines
        ranks = [source.rank for source in self.sources]
        listed = ", ".join(part.replace("-", " to ") for part in ranges_of(ranks))
        if len(ranks) == 2:
            listed = f"{ranks[0]} and {ranks[1]}"
        return f"{self.lines[0]} (on ranks {listed})", *self.lines[1:]


class Burst:
    """Lines that are kept for a moment, to join similar lines of other ranks. Times are seconds on
    any clock.
    """

    def __init__(self) -> None:
        self._lines: list[PrintedLine] = []
        self.deadline: float | None = None
        """When they must be shown; None if there are none."""

    def wants(self, source: LineSource, stream: int) -> bool:
        """Return whether the burst takes lines of this source.

        It takes all lines of stderr. It takes lines of stdout if it already has other lines of the
        same rank.
        """
        return stream == 2 or any(line.source == source for line in self._lines)

    def add(self, source: LineSource, lines: Sequence[str], now: float, stream: int = 2) -> None:
        """Add lines, without their ends."""
        shown = [without_actor(line) for line in lines]
        seconds = _ALARM_SECONDS if any(map(is_alarm, shown)) else _HOLD_SECONDS
        due = now + _HOLD_SECONDS if self.deadline is None else self.deadline
        self.deadline = max(due, now + seconds) if seconds > _HOLD_SECONDS else due
        self._lines += [PrintedLine(source, line, stream) for line in shown]
        if len(self._lines) > _MOST_LINES:
            self.deadline = now

    def take(self) -> list[SharedLines]:
        """Return the condensed lines, and empty the burst."""
        lines, self._lines, self.deadline = self._lines, [], None
        return condensed(lines)


def is_alarm(text: str) -> bool:
    """Return whether this may be a warning or an assertion, which all ranks will soon print."""
    return _ALARM.search(text) is not None


def without_actor(text: str) -> str:
    """Return a line without the name of the actor that logged it.

    The label in front of the line has the name already.
    """
    return _ACTOR.sub("", text, count=1)


def condensed(lines: Iterable[PrintedLine]) -> list[SharedLines]:
    """Merge equal or similar lines into shared lines."""
    entries: dict[tuple[object, ...], _Condensed] = {}
    seen: Counter[tuple[LineSource, str]] = Counter()
    for entry in _without_runs(lines):
        (source,), text = entry.sources, entry.text
        shape = _shape(text) if is_alarm(text) else text
        seen[source, shape] += 1
        # A rank's second copy of a line is merged with the second copies of the others.
        key = (source.name, shape, seen[source, shape]) if entry.stream == 2 else entry.at
        if key in entries:
            entries[key].sources.append(source)
        else:
            entries[key] = entry
    blocks: list[SharedLines] = []
    for entry in sorted(entries.values(), key=lambda entry: entry.at):
        sources = tuple(sorted(entry.sources))
        if blocks and (blocks[-1].sources, blocks[-1].stream) == (sources, entry.stream):
            blocks[-1] = blocks[-1]._replace(lines=(*blocks[-1].lines, entry.text))
        else:
            blocks.append(SharedLines(sources, (entry.text,), entry.stream))
    return blocks


class _Condensed(NamedTuple):
    at: tuple[int, int]  # its place among all lines, and beside the line that it belongs to
    sources: list[LineSource]
    text: str
    stream: int


def _without_runs(lines: Iterable[PrintedLine]) -> Iterator[_Condensed]:
    """Yield the lines by source. A run of lines of stderr that differ only in numbers is cut short:
    only its first line is yielded, and a line that says how many more there were.
    """
    by_source: dict[LineSource, list[tuple[int, PrintedLine]]] = {}
    for number, line in enumerate(lines):
        by_source.setdefault(line.source, []).append((number, line))
    for source, numbered in by_source.items():
        alike = itertools.groupby(numbered, lambda pair: (_shape(pair[1].text), pair[1].stream))
        for (_, stream), group in alike:
            run = [(number, line.text) for number, line in group]
            if len(run) < _LEAST_ALIKE or stream == 1:
                for number, text in run:
                    yield _Condensed((number, 0), [source], text, stream)
                continue
            number, text = run[0]
            yield _Condensed((number, 0), [source], text, stream)
            yield _Condensed((number, 1), [source], f"{len(run) - 1} more like it", stream)


def _shape(text: str) -> str:
    return _NUMBER.sub("0", text)
