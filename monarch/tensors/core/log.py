"""The log of sent operations, which shows what a failure spoils.

It keeps the sent records until every rank has run them. When a rank reports that the record at
(batch, segment, position) failed, its results are spoiled, and so is each tensor that it writes to,
with all views of that tensor. Then all results that were computed from spoiled values are spoiled,
in the order of issue. This holds on all ranks: fetching the shard of another rank raises too.

A spoiled reference remains spoiled until it is freed. The results of an operation that uses it are
spoiled as soon as the operation is sent.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from monarch.tensors.core.batch import FREE, RecordSegment
from monarch.tensors.core.templates import Template


class OpFailure(NamedTuple):
    """A record that failed by itself, not because an input had failed."""

    batch: int
    segment: int
    position: int
    rank: int
    text: str


class Spoiler(msgspec.Struct, eq=False):
    """Why a value is spoiled: the failure, and where the user issued the operation that failed."""

    failure: OpFailure
    frames: Any
    #: Whether the program has seen the failure.
    was_raised: bool = False


class ValueWatch(msgspec.Struct, eq=False, weakref=True):
    """A caller that waits for the values of ``refs`` as they are after batch ``upto``.

    ``spoiler`` is set as soon as one of the values is known to be spoiled. So the caller learns of
    it even if the references have been freed meanwhile.
    """

    refs: frozenset[int]
    upto: int
    spoiler: Spoiler | None = None


_MOST_UNASKED = 64


class IssueLog:
    """The batches that some rank has not run yet, and the references that are spoiled.

    A reference is spoiled if its value depends on an operation that failed.
    """

    def __init__(self) -> None:
        self._batches: deque[tuple[int, list[RecordSegment]]] = deque()
        #: The last batch that all ranks have passed.
        self.settled = -1
        #: The references that are spoiled before the first of the batches.
        self._spoiled_before: dict[int, Spoiler] = {}
        #: The references that are spoiled after the last of the batches.
        self.spoiled: dict[int, Spoiler] = {}
        #: The latest failures that no fetch has raised.
        self.unasked: list[Spoiler] = []
        self._watches: weakref.WeakSet[ValueWatch] = weakref.WeakSet()

    def __len__(self) -> int:
        return len(self._batches)

    def sent(self, batch: int, segments: list[RecordSegment]) -> None:
        """Add a batch that was sent. Results that it computes from spoiled values are spoiled
        too."""
        self._batches.append((batch, segments))
        if self.spoiled:
            self._walk(batch, segments, self.spoiled, {})

    def watch(self, refs: Iterable[int], upto: int) -> ValueWatch:
        """Register a caller that asks for values as they are after ``upto``, the last batch."""
        watch = ValueWatch(frozenset(refs), upto)
        watch.spoiler = next((self.spoiled[ref] for ref in watch.refs if ref in self.spoiled), None)
        self._watches.add(watch)
        return watch

    def settle(self, upto: int, failures: Iterable[OpFailure]) -> None:
        """Record that all ranks have run batch ``upto`` and all before it.

        ``failures`` are all their failures in these batches.
        """
        new: dict[tuple[int, int, int], OpFailure] = {}
        for failure in sorted(failures):
            if self.settled < failure.batch <= upto:
                new.setdefault(failure[:3], failure)
        passed = []
        while self._batches and self._batches[0][0] <= upto:
            passed.append(self._batches.popleft())
        self.settled = max(self.settled, upto)
        if not new and not self._spoiled_before:
            return
        # From the state before them: a value that was spoiled after its use did no harm.
        for batch, segments in passed:
            self._walk(batch, segments, self._spoiled_before, new)
        if new:
            self.spoiled = dict(self._spoiled_before)
            for batch, segments in self._batches:
                self._walk(batch, segments, self.spoiled, {})

    def _walk(
        self,
        batch: int,
        segments: list[RecordSegment],
        spoiled: dict[int, Spoiler],
        failures: dict[tuple[int, int, int], OpFailure],
    ) -> None:
        """Update ``spoiled``, from its state before a batch to its state after it."""
        for index, segment in enumerate(segments):
            ints, ops = segment.ints, iter(segment.ops)
            at = 0
            while at < len(ints):
                if ints[at] == FREE:
                    num = ints[at + 1]
                    for ref in ints[at + 2 : at + 2 + num]:
                        spoiled.pop(ref, None)
                    at += 2 + num
                    continue
                _, frames, template, storages = next(ops)
                used = ints[at + 2 : at + 2 + template.num_in]
                failure = failures.get((batch, index, at))
                if failure is not None:
                    spoiler: Spoiler | None = self._failed(failure, frames)
                else:
                    spoiler = next((spoiled[ref] for ref in used if ref in spoiled), None)
                if spoiler is not None:
                    marked = _marked(used, ints[at + 1], template, storages)
                    for ref in marked:
                        spoiled.setdefault(ref, spoiler)
                    self._tell(batch, spoiler, marked)
                at += 2 + template.num_in

    def _failed(self, failure: OpFailure, frames: Any) -> Spoiler:
        spoiler = Spoiler(failure, frames)
        self.unasked = [*self.unasked, spoiler][-_MOST_UNASKED:]
        return spoiler

    def _tell(self, batch: int, spoiler: Spoiler, marked: list[int]) -> None:
        for watch in self._watches:
            if watch.spoiler is None and batch <= watch.upto and not watch.refs.isdisjoint(marked):
                watch.spoiler = spoiler


def _marked(used: Sequence[int], base: int, template: Template, storages: Any) -> list[int]:
    """Return the references that an operation makes or writes to, and all views of their memory."""
    marked = list(range(base, base + template.num_out))
    marked += [used[position] for position in template.mutates]
    marked += [ref for storage in storages for ref in storage.refs or ()]
    return marked
