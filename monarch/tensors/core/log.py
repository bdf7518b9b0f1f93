"""What a failure spoils, worked out from what was sent.

Nothing is kept for it but the sent records themselves, until every rank has passed them. When a rank
says that the record at (batch, segment, position) has failed, its results are spoiled, and what it
writes to, with all views of that; then whatever was made of any of these, in the order of issue. On all
ranks alike: a shard of another rank, asked for afterwards, raises too.

References that are spoiled stay so until they are freed; what is issued with them is spoiled as it is
issued.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from monarch.tensors.core.batch import FREE, Segment
from monarch.tensors.core.templates import Template


class Failure(NamedTuple):
    """A record that failed by itself, not because of what it was given."""

    batch: int
    segment: int
    position: int
    rank: int
    text: str


class Spoiler:
    """Why something is spoiled: the failure, and where the user issued what failed."""

    __slots__ = ("failure", "frames", "was_raised")

    def __init__(self, failure: Failure, frames: Any) -> None:
        self.failure = failure
        self.frames = frames
        self.was_raised = False


class Watch:
    """Somebody waits for the values of ``refs`` as they are after batch ``upto``. ``spoiler`` is why
    one of them will not be had, once that is known; they may have been freed by then."""

    __slots__ = ("__weakref__", "refs", "spoiler", "upto")

    def __init__(self, refs: frozenset[int], upto: int) -> None:
        self.refs = refs
        self.upto = upto
        self.spoiler: Spoiler | None = None


_MOST_UNASKED = 64


class Log:
    """The batches that not all ranks have passed yet, and what is spoiled."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, list[Segment]]] = deque()
        self.settled = -1  # All ranks have passed this batch.
        self.spoiled: dict[int, Spoiler] = {}
        self.unasked: list[Spoiler] = []
        self._watches: weakref.WeakSet[Watch] = weakref.WeakSet()

    def __len__(self) -> int:
        return len(self._batches)

    def sent(self, batch: int, segments: list[Segment]) -> None:
        self._batches.append((batch, segments))

    def freed(self, refs: Iterable[int]) -> None:
        """Nobody can ask for these any more."""
        for ref in refs:
            self.spoiled.pop(ref, None)

    def issued(self, used: Sequence[int], base: int, template: Template, storages: Any) -> None:
        """Something is issued while something is spoiled."""
        spoiler = next((self.spoiled[ref] for ref in used if ref in self.spoiled), None)
        if spoiler is not None:
            self._spoil(spoiler, used, base, template, storages)

    def watch(self, refs: Iterable[int], upto: int) -> Watch:
        """Somebody asks for these as they are after batch ``upto``."""
        watch = Watch(frozenset(refs), upto)
        watch.spoiler = next((self.spoiled[ref] for ref in watch.refs if ref in self.spoiled), None)
        self._watches.add(watch)
        return watch

    def settle(self, upto: int, failures: Iterable[Failure]) -> None:
        """All ranks have passed batch ``upto``, and these are all their failures up to there."""
        new: dict[tuple[int, int, int], Failure] = {}
        for failure in sorted(failures):
            if self.settled < failure.batch <= upto:
                new.setdefault(failure[:3], failure)
        if new:
            self._walk(new)
        self.settled = max(self.settled, upto)
        while self._batches and self._batches[0][0] <= self.settled:
            self._batches.popleft()

    def _walk(self, failures: dict[tuple[int, int, int], Failure]) -> None:
        for batch, segments in self._batches:
            for index, segment in enumerate(segments):
                self._walk_segment(batch, index, segment, failures)

    def _walk_segment(
        self,
        batch: int,
        index: int,
        segment: Segment,
        failures: dict[tuple[int, int, int], Failure],
    ) -> None:
        ints, end = segment.ints, len(segment.ints)
        ops = iter(segment.ops)
        at = 0
        while at < end:
            if ints[at] == FREE:
                num = ints[at + 1]
                self.freed(ints[at + 2 : at + 2 + num])
                at += 2 + num
                continue
            _, frames, template, storages = next(ops)
            used = ints[at + 2 : at + 2 + template.num_in]
            spoiler = None
            failure = failures.get((batch, index, at))
            if failure is not None:
                spoiler = Spoiler(failure, frames)
                self.unasked = [*self.unasked, spoiler][-_MOST_UNASKED:]
            elif self.spoiled:
                spoiler = next((self.spoiled[ref] for ref in used if ref in self.spoiled), None)
            if spoiler is not None:
                marked = self._spoil(spoiler, used, ints[at + 1], template, storages)
                self._tell(batch, spoiler, marked)
            at += 2 + template.num_in

    def _spoil(
        self, spoiler: Spoiler, used: Sequence[int], base: int, template: Template, storages: Any
    ) -> list[int]:
        marked = list(range(base, base + template.num_out))
        marked += [used[position] for position in template.mutates]
        marked += [ref for storage in storages for ref in storage.refs or ()]
        for ref in marked:
            self.spoiled.setdefault(ref, spoiler)
        return marked

    def _tell(self, batch: int, spoiler: Spoiler, marked: list[int]) -> None:
        for watch in self._watches:
            if watch.spoiler is None and batch <= watch.upto and not watch.refs.isdisjoint(marked):
                watch.spoiler = spoiler
