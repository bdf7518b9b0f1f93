"""The plan of copies from one sharding of a tensor to another. Pure.

A tensor is a *box* of elements; each rank has pieces of it. A *piece* says where its box begins in
the whole tensor, and where in the rank's local tensor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Coordinates = tuple[int, ...]


class ShardPiece(NamedTuple):
    """A box of ``sizes`` elements that begins at ``start`` in the whole and at ``local`` in the
    shard."""

    start: Coordinates
    sizes: Coordinates
    local: Coordinates

    @property
    def num_elements(self) -> int:
        return math.prod(self.sizes)


class Split(NamedTuple):
    """The sharding of dimension ``dim`` among ``size`` ranks of a mesh dimension; this is
    ``number``.

    ``is_late``: it splits the part that other mesh dimensions leave (torch's strided shards, as
    FSDP over tensor parallelism makes them).
    """

    dim: int
    size: int
    number: int
    is_late: bool = False


class CopyStep(NamedTuple):
    """Copy ``sizes`` elements of ``key``, from ``source`` in the shard of ``rank`` to ``target``
    here."""

    rank: int
    key: str
    source: Coordinates
    target: Coordinates
    sizes: Coordinates


def pieces_of(shape: Sequence[int], splits: Sequence[Split]) -> tuple[ShardPiece, ...]:
    """Return the pieces of a tensor of ``shape`` that one rank has.

    Each split makes chunks as ``torch.chunk`` does.
    """
    lines = [
        _line(size, [split for split in splits if split.dim == dim])
        for dim, size in enumerate(shape)
    ]
    found = []
    for parts in itertools.product(*lines):
        start, sizes, local = zip(*parts, strict=True) if parts else ((), (), ())
        found.append(ShardPiece(tuple(start), tuple(sizes), tuple(local)))
    return tuple(found)


def local_shape(shape: Sequence[int], splits: Sequence[Split]) -> Coordinates:
    """Return the shape of a rank's local tensor."""
    return tuple(
        sum(length for _, length, _ in _line(size, [one for one in splits if one.dim == dim]))
        for dim, size in enumerate(shape)
    )


def _line(size: int, splits: Sequence[Split]) -> list[tuple[int, int, int]]:
    """Return the intervals of one dimension: start in the whole, length, and start in the local
    tensor."""
    intervals = [(0, size)]
    early = [split for split in splits if not split.is_late]
    late = [split for split in reversed(splits) if split.is_late]
    for split in early + late:
        total = sum(length for _, length in intervals)
        chunk = -(-total // split.size)
        first = min(total, split.number * chunk)
        intervals = _between(intervals, first, min(total, first + chunk))
    placed, place = [], 0
    for start, length in intervals:
        placed.append((start, length, place))
        place += length
    return placed


def _between(intervals: Sequence[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    found, place = [], 0
    for start, length in intervals:
        low, high = max(first, place), min(last, place + length)
        if low < high:
            found.append((start + low - place, high - low))
        place += length
    return found


def plan(
    wanted: Mapping[str, Sequence[ShardPiece]],
    held: Sequence[Mapping[str, Sequence[ShardPiece]]],
    *,
    first: int = 0,
    lost: frozenset[int] = frozenset(),
) -> list[CopyStep]:
    """Return steps that fill ``wanted`` with each element once, from ranks that have them.

    If several ranks have an element, the work is divided: readers with different ``first`` begin at
    different ranks. Raises ``KeyError`` for a key that no rank has, ``ValueError`` for elements
    that none has.
    """
    load = [0] * len(held)
    steps: list[CopyStep] = []
    for key, pieces in wanted.items():
        holders = [
            (rank, piece)
            for rank, one in enumerate(held)
            if rank not in lost
            for piece in one.get(key, ())
            if piece.num_elements
        ]
        if not holders and not any(key in one for one in held):
            raise KeyError(key)
        for piece in pieces:
            for step in _fill(key, piece, holders, load, first):
                load[step.rank] += math.prod(step.sizes)
                steps.append(step)
    return steps


def _fill(
    key: str,
    wanted: ShardPiece,
    holders: Sequence[tuple[int, ShardPiece]],
    load: Sequence[int],
    first: int,
) -> list[CopyStep]:
    num = max(1, len(load))
    order = sorted(holders, key=lambda one: (load[one[0]], (one[0] - first) % num))
    missing = [(wanted.start, wanted.sizes)] if wanted.num_elements else []
    steps = []
    for rank, piece in order:
        left = []
        for start, sizes in missing:
            common = _common(start, sizes, piece)
            if common is None:
                left.append((start, sizes))
                continue
            begin, extent = common
            steps.append(
                CopyStep(
                    rank,
                    key,
                    _moved(begin, piece.start, piece.local),
                    _moved(begin, wanted.start, wanted.local),
                    extent,
                )
            )
            left += _without(start, sizes, begin, extent)
        missing = left
        if not missing:
            return steps
    if missing:
        start, sizes = missing[0]
        raise ValueError(
            f"no rank holds the elements of {key!r} from {start} on, {sizes} of them: see that all "
            "ranks publish, and that the shape is the one published"
        )
    return steps


def _moved(place: Coordinates, origin: Coordinates, to: Coordinates) -> Coordinates:
    return tuple(a - b + c for a, b, c in zip(place, origin, to, strict=True))


def _common(
    start: Coordinates, sizes: Coordinates, piece: ShardPiece
) -> tuple[Coordinates, Coordinates] | None:
    begin = tuple(map(max, start, piece.start))
    extent = tuple(
        min(a + n, b + m) - low
        for a, n, b, m, low in zip(start, sizes, piece.start, piece.sizes, begin, strict=True)
    )
    return (begin, extent) if all(size > 0 for size in extent) else None


def _without(
    start: Coordinates, sizes: Coordinates, begin: Coordinates, extent: Coordinates
) -> list[tuple[Coordinates, Coordinates]]:
    """Return the rest of a box, without the inner box, as boxes."""
    found = []
    low, size = list(start), list(sizes)
    for dim in range(len(start)):
        before = begin[dim] - low[dim]
        if before:
            found.append((tuple(low), (*size[:dim], before, *size[dim + 1 :])))
        after = low[dim] + size[dim] - begin[dim] - extent[dim]
        if after:
            place = (*low[:dim], begin[dim] + extent[dim], *low[dim + 1 :])
            found.append((place, (*size[:dim], after, *size[dim + 1 :])))
        low[dim], size[dim] = begin[dim], extent[dim]
    return found
