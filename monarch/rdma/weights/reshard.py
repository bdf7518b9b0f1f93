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
    """A box of ``sizes`` elements of a tensor.

    It begins at ``start`` in the whole tensor, and at ``local`` in the shard.
    """

    start: Coordinates
    sizes: Coordinates
    local: Coordinates

    @property
    def num_elements(self) -> int:
        return math.prod(self.sizes)


class Split(NamedTuple):
    """The sharding of dimension ``dim`` among ``size`` ranks, of which this rank is ``number``.

    If ``is_late``, it splits the shards that the other splits make (torch's strided shards, as FSDP
    over tensor parallelism makes them).
    """

    dim: int
    size: int
    number: int
    is_late: bool = False


class CopyStep(NamedTuple):
    """A copy of ``sizes`` elements of the tensor ``key``.

    They are at ``source`` in the shard of ``rank``, and go to ``target`` in this rank's shard.
    """

    rank: int
    key: str
    source: Coordinates
    target: Coordinates
    sizes: Coordinates


def pieces_of(shape: Sequence[int], splits: Sequence[Split]) -> tuple[ShardPiece, ...]:
    """Return the pieces of a tensor of ``shape`` that one rank has.

    Each split makes chunks as ``torch.chunk`` does.
    """
    pieces = []
    for parts in itertools.product(*_intervals_of(shape, splits)):
        start, sizes, local = zip(*parts, strict=True) if parts else ((), (), ())
        pieces.append(ShardPiece(tuple(start), tuple(sizes), tuple(local)))
    return tuple(pieces)


def local_shape(shape: Sequence[int], splits: Sequence[Split]) -> Coordinates:
    """Return the shape of a rank's local tensor."""
    return tuple(
        sum(length for _, length, _ in intervals) for intervals in _intervals_of(shape, splits)
    )


def _intervals_of(
    shape: Sequence[int], splits: Sequence[Split]
) -> list[list[tuple[int, int, int]]]:
    """Return a rank's intervals of each dimension.

    An interval is its start in the whole tensor, its length, and its start in the local tensor.
    """
    early = [split for split in splits if not split.is_late]
    late = [split for split in reversed(splits) if split.is_late]
    dimensions = []
    for dim, size in enumerate(shape):
        intervals = [(0, size, 0)]
        for split in early + late:
            if split.dim == dim:
                total = sum(length for _, length, _ in intervals)
                chunk = -(-total // split.size)
                first = min(total, split.number * chunk)
                intervals = _between(intervals, first, min(total, first + chunk))
        dimensions.append(intervals)
    return dimensions


def _between(
    intervals: Sequence[tuple[int, int, int]], first: int, last: int
) -> list[tuple[int, int, int]]:
    """Return the intervals of the elements ``first`` to ``last`` of the local tensor."""
    parts = []
    for start, length, local in intervals:
        low, high = max(first, local), min(last, local + length)
        if low < high:
            parts.append((start + low - local, high - low, low - first))
    return parts


def plan(
    wanted: Mapping[str, Sequence[ShardPiece]],
    held: Sequence[Mapping[str, Sequence[ShardPiece]]],
    *,
    first: int = 0,
    lost: frozenset[int] = frozenset(),
) -> list[CopyStep]:
    """Return steps that fill ``wanted``, each element once, from ranks that have them.

    If several ranks have an element, the work is divided: readers with different ``first`` begin at
    different ranks. The ranks ``lost`` are not used. Raises ``KeyError`` for a key that no rank
    has, ``ValueError`` for elements that none has.
    """
    load = [0] * len(held)
    steps: list[CopyStep] = []
    for key, pieces in wanted.items():
        holders = [
            (rank, piece)
            for rank, pieces_by_key in enumerate(held)
            if rank not in lost
            for piece in pieces_by_key.get(key, ())
            if piece.num_elements
        ]
        if not holders and not any(key in pieces_by_key for pieces_by_key in held):
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
    order = sorted(holders, key=lambda holder: (load[holder[0]], (holder[0] - first) % num))
    missing = [(wanted.start, wanted.sizes)] if wanted.num_elements else []
    steps = []
    for rank, piece in order:
        still_missing = []
        for start, sizes in missing:
            common = _common(start, sizes, piece)
            if common is None:
                still_missing.append((start, sizes))
                continue
            begin, extent = common
            source = _moved(begin, piece.start, piece.local)
            target = _moved(begin, wanted.start, wanted.local)
            steps.append(CopyStep(rank, key, source, target, extent))
            still_missing += _without(start, sizes, begin, extent)
        missing = still_missing
    if missing:
        start, sizes = missing[0]
        raise ValueError(
            f"no rank holds the elements of {key!r} from {start} on, {sizes} of them: see that all "
            "ranks publish, and that the shape is the one published"
        )
    return steps


def _moved(point: Coordinates, origin: Coordinates, to: Coordinates) -> Coordinates:
    return tuple(a - b + c for a, b, c in zip(point, origin, to, strict=True))


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
    """Return the boxes that remain of a box when the inner box is cut out of it."""
    boxes = []
    low, size = list(start), list(sizes)
    for dim in range(len(start)):
        num_before = begin[dim] - low[dim]
        if num_before:
            boxes.append((tuple(low), (*size[:dim], num_before, *size[dim + 1 :])))
        num_after = low[dim] + size[dim] - begin[dim] - extent[dim]
        if num_after:
            corner = (*low[:dim], begin[dim] + extent[dim], *low[dim + 1 :])
            boxes.append((corner, (*size[:dim], num_after, *size[dim + 1 :])))
        low[dim], size[dim] = begin[dim], extent[dim]
    return boxes
