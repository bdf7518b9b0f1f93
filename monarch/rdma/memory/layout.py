"""The layout of a tensor's bytes: runs of memory, in the order of its elements. Pure.

A *layout* is relative to the address of the first element: ``run`` bytes that lie together, and the
dimensions around them, outermost first, with their strides. A *run* is ``(offset, length)``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

Run = tuple[int, int]


class Layout(NamedTuple):
    """The layout of an array: runs of ``run`` adjacent bytes, which its dimensions repeat.

    ``sizes`` and ``strides`` (in bytes) are of these dimensions, the outermost first.
    """

    run: int
    sizes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        return self.run * math.prod(self.sizes)

    @property
    def is_contiguous(self) -> bool:
        return not self.sizes

    @property
    def has_shared_places(self) -> bool:
        """Whether several elements share a place in memory, as in an expanded tensor."""
        return 0 in self.strides

    def span(self) -> Run:
        """Return the smallest run that contains all bytes of the layout."""
        reach = [stride * (size - 1) for size, stride in zip(self.sizes, self.strides, strict=True)]
        low = sum(min(0, step) for step in reach)
        return low, sum(max(0, step) for step in reach) + self.run - low

    def runs(self, start: int = 0, stop: int | None = None) -> Iterator[Run]:
        """Yield the runs of the bytes ``start`` to ``stop``, counted in the order of the
        elements."""
        stop = self.nbytes if stop is None else stop
        while start < stop:
            number, within = divmod(start, self.run)
            length = min(self.run - within, stop - start)
            offset = within
            for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
                number, index = divmod(number, size)
                offset += index * stride
            yield offset, length
            start += length


def layout_of(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Layout:
    """Return the layout of an array whose strides are in bytes; adjacent elements form one run."""
    run = itemsize
    around: list[tuple[int, int]] = []
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if not around and stride == run:
            run *= size
        elif around and stride == around[-1][0] * around[-1][1]:
            around[-1] = (around[-1][0] * size, around[-1][1])
        else:
            around.append((size, stride))
    around.reverse()
    return Layout(run, tuple(size for size, _ in around), tuple(stride for _, stride in around))


def at(address: int, runs: Iterable[Run]) -> Iterator[Run]:
    """Yield the runs with ``address`` added to their offsets."""
    return ((address + offset, length) for offset, length in runs)


def joined(runs: Iterable[Run]) -> Iterator[Run]:
    """Yield the bytes of ``runs``, in their order, with adjacent runs joined into one."""
    last: Run | None = None
    for offset, length in runs:
        if last is not None and last[0] + last[1] == offset:
            last = last[0], last[1] + length
            continue
        if last is not None:
            yield last
        last = offset, length
    if last is not None:
        yield last


def batches(
    runs: Iterable[Run], most_runs: int, most_bytes: int
) -> Iterator[tuple[list[Run], int]]:
    """Yield groups of at most ``most_runs`` runs and ``most_bytes`` bytes, each with its number of
    bytes."""
    batch: list[Run] = []
    total = 0
    for offset, length in runs:
        while length:
            if len(batch) == most_runs or total == most_bytes:
                yield batch, total
                batch, total = [], 0
            part = min(length, most_bytes - total)
            batch.append((offset, part))
            total += part
            offset, length = offset + part, length - part
    if batch:
        yield batch, total


class StoragePlace(NamedTuple):
    """Bytes of a storage; ``address`` is the address of the first element."""

    storage: Any
    address: int
    layout: Layout

    def cut(self, start: int, stop: int) -> Iterator[StoragePlace]:
        """Cut out the bytes ``start`` to ``stop``, counted in the order of the elements.

        Yields places that have these bytes; whole rows are together in one place.
        """
        for offset, layout in blocks(self.layout, start, stop):
            yield StoragePlace(self.storage, self.address + offset, layout)


def blocks(layout: Layout, start: int, stop: int) -> Iterator[tuple[int, Layout]]:
    """Cut out the bytes ``start`` to ``stop``, counted in the order of the elements.

    Yields layouts that have these bytes, each with its offset; whole rows are together in one
    layout.
    """
    if start >= stop:
        return
    if layout.is_contiguous:
        yield start, Layout(stop - start)
        return
    inner = Layout(layout.run, layout.sizes[1:], layout.strides[1:])
    row, stride = inner.nbytes, layout.strides[0]
    first, last = -(-start // row), stop // row
    if first > last:  # All of it is within one row.
        yield from _moved(last * stride, blocks(inner, start - last * row, stop - last * row))
        return
    offset = (first - 1) * row
    yield from _moved((first - 1) * stride, blocks(inner, start - offset, row))
    if first < last:
        yield first * stride, Layout(layout.run, (last - first, *inner.sizes), layout.strides)
    yield from _moved(last * stride, blocks(inner, 0, stop - last * row))


def _moved(by: int, parts: Iterable[tuple[int, Layout]]) -> Iterator[tuple[int, Layout]]:
    return ((by + offset, layout) for offset, layout in parts)


def paired(
    source: Iterable[StoragePlace], target: Iterable[StoragePlace]
) -> Iterator[tuple[StoragePlace, StoragePlace]]:
    """Cut both sides into pairs of places of equal size, each for one copy.

    Raises ``ValueError`` if ``source`` has fewer bytes than ``target``.
    """
    from_places, to_places = deque(source), deque(target)
    while to_places:
        if not from_places:
            raise ValueError("it is too small")
        size = min(from_places[0].layout.nbytes, to_places[0].layout.nbytes)
        for side in (from_places, to_places):
            if side[0].layout.nbytes > size:
                whole = side.popleft()
                side.extendleft(reversed(list(whole.cut(size, whole.layout.nbytes))))
                side.extendleft(reversed(list(whole.cut(0, size))))
        if from_places[0].layout.nbytes == to_places[0].layout.nbytes:
            yield from_places.popleft(), to_places.popleft()


class RunReader:
    """Takes runs from a sequence, a given number of bytes at a time."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs = iter(runs)
        #: The rest of a run that was taken in part.
        self._rest: Run = (0, 0)

    def take(self, num_bytes: int) -> list[Run]:
        """Return the next runs with ``num_bytes`` in total. Raises ``ValueError`` if too few are
        left."""
        taken = []
        while num_bytes:
            offset, length = self._rest
            if not length:
                following = next(self._runs, None)
                if following is None:
                    raise ValueError("it is too small")
                self._rest = following
                continue
            part = min(length, num_bytes)
            taken.append((offset, part))
            self._rest = offset + part, length - part
            num_bytes -= part
        return taken
