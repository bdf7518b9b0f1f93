"""Combines many similar lines into one, with a count.

Two lines are similar if less than 15 % of the longer one's characters would have to change. A line
joins the most similar group; the group shows its first line, with the differing words as ``<<a,
b>>``. It does not matter which rank a line comes from, so lines that one rank repeats count too.

The work is bounded: there are maximum numbers of groups, of comparisons, and of lines that are
looked at. Further lines are only counted, and the last of them kept as they are.
"""

from __future__ import annotations

import re
from collections import deque
from typing import NamedTuple

_THRESHOLD = 0.15
_MAX_GROUPS = 256
_MAX_KNOWN = 4096
_MAX_LINES = 10_000
_MAX_COMPARISONS = 6_000
_MAX_COMPARED_CHARS = 400
_MAX_VARIANTS = 4
_NUM_LAST = 20

_NUMBER = re.compile(r"\d+")
_SPACES = re.compile(r"(\s+)")


class LineSource(NamedTuple):
    """The process that a line is from."""

    name: str
    rank: int


class Aggregate(NamedTuple):
    """``num_lines`` similar lines; ``text`` represents all of them."""

    num_lines: int
    text: str
    sources: tuple[LineSource, ...]


class Summary(NamedTuple):
    """The lines of a window of time.

    ``aggregates`` represent groups of similar lines. ``last`` are the latest of all other lines;
    ``num_more`` is the number of the other lines before these.
    """

    aggregates: list[Aggregate]
    num_more: int
    last: list[tuple[LineSource, str]]


class _Group:
    def __init__(self, text: str, source: LineSource) -> None:
        self.first = text
        self.count = 1
        self.sources = {source: None}
        self._words = _SPACES.split(text)
        self._variants: dict[int, dict[str, None]] = {}

    def add(self, text: str, source: LineSource) -> None:
        self.count += 1
        self.sources[source] = None
        words = _SPACES.split(text)
        if len(words) != len(self._words):
            return
        for position, (mine, theirs) in enumerate(zip(self._words, words, strict=True)):
            if mine != theirs:
                variants = self._variants.setdefault(position, {})
                if len(variants) < _MAX_VARIANTS:
                    variants[theirs] = None

    def again(self, source: LineSource) -> None:
        self.count += 1
        self.sources[source] = None

    @property
    def text(self) -> str:
        words = list(self._words)
        for position, variants in self._variants.items():
            values = [words[position], *variants]
            shown = ", ".join(values[:_MAX_VARIANTS])
            words[position] = f"<<{shown}{', ...' if len(values) > _MAX_VARIANTS else ''}>>"
        return "".join(words)


class Aggregator:
    """Aggregates the lines of one window."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._groups: list[_Group] = []
        self._by_text: dict[str, _Group] = {}
        self._by_shape: dict[str, list[_Group]] = {}
        self._num_lines = 0
        self._num_comparisons = 0
        self._num_more = 0
        self._last: deque[tuple[LineSource, str]] = deque(maxlen=_NUM_LAST)

    def __bool__(self) -> bool:
        return bool(self._groups or self._num_more)

    def add(self, text: str, source: LineSource) -> None:
        """Add one line, without its end."""
        group = self._by_text.get(text)
        if group is not None:
            group.again(source)
            return
        self._num_lines += 1
        if self._num_lines > _MAX_LINES:
            self._count(text, source)
            return
        shape = _NUMBER.sub("0", text)
        group = self._most_similar(text, shape)
        if group is not None:
            group.add(text, source)
        elif len(self._groups) < _MAX_GROUPS:
            group = _Group(text, source)
            self._groups.append(group)
            self._by_shape.setdefault(shape, []).append(group)
        else:
            self._count(text, source)
            return
        if len(self._by_text) < _MAX_KNOWN:
            self._by_text[text] = group

    def take(self) -> Summary:
        """Return the summary of all lines since the last call. Groups are in the order of their
        first lines.
        """
        aggregates = [
            Aggregate(group.count, group.text, tuple(group.sources)) for group in self._groups
        ]
        summary = Summary(aggregates, self._num_more - len(self._last), list(self._last))
        self._reset()
        return summary

    def _count(self, text: str, source: LineSource) -> None:
        self._num_more += 1
        self._last.append((source, text))

    def _most_similar(self, text: str, shape: str) -> _Group | None:
        # Lines that differ in numbers only are what a training loop prints: look there first.
        same_shape = self._by_shape.get(shape, ())
        best = self._best(text, same_shape)
        if best is None and len(text) <= _MAX_COMPARED_CHARS:
            best = self._best(text, self._groups)
        return best

    def _best(self, text: str, groups: list[_Group] | tuple[()]) -> _Group | None:
        best, least = None, _THRESHOLD
        length = len(text)
        for group in groups:
            longer = max(length, len(group.first))
            if abs(length - len(group.first)) >= least * longer:
                continue
            self._num_comparisons += 1
            if self._num_comparisons > _MAX_COMPARISONS:
                return best or (group if groups is not self._groups else None)
            share = edit_distance(group.first, text) / longer
            if share < least:
                best, least = group, share
        return best


def edit_distance(text: str, other: str) -> int:
    """Return how many characters to insert, delete or replace to turn ``text`` into ``other``.

    A common beginning and end cost no time; the rest is computed a column at a time in the bits of
    one integer (Myers 1999, with Hyyro's correction).
    """
    text, other = _strip_common(text, other)
    if not text or not other:
        return len(text) + len(other)
    where: dict[str, int] = {}
    for position, character in enumerate(text):
        where[character] = where.get(character, 0) | 1 << position
    mask = (1 << len(text)) - 1
    last = 1 << (len(text) - 1)
    up, down, distance = mask, 0, len(text)
    for character in other:
        match = where.get(character, 0)
        diagonal = (((match & up) + up) ^ up) | match | down
        right, left = down | (~(diagonal | up) & mask), up & diagonal
        if right & last:
            distance += 1
        elif left & last:
            distance -= 1
        right = (right << 1) | 1
        left <<= 1
        up = (left | ~(diagonal | right)) & mask
        down = diagonal & right & mask
    return distance


def _strip_common(text: str, other: str) -> tuple[str, str]:
    """Return two texts without their common beginning and end."""
    start = _num_common(text, other)
    text, other = text[start:], other[start:]
    end = _num_common(text[::-1], other[::-1])
    return text[: len(text) - end], other[: len(other) - end]


def _num_common(text: str, other: str) -> int:
    """Return the length of the common beginning, found by halving, because comparing slices is
    fast."""
    low, high = 0, min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
