"""Slice: a strided set of ranks, without the names of its dimensions.

A slice has an `offset`, and for each dimension a `size` and a `stride`. `slice[k]` is its k-th rank
in row-major order; `index` is the inverse. Strides nest: a step along one dimension is longer than
the whole distance that all dimensions with shorter steps cover. So every rank appears at most once,
and its coordinates are found by plain division.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import final, overload


@final
class Slice:
    """A compact, immutable set of ranks laid out in n dimensions."""

    __slots__ = ("_by_stride", "_len", "_offset", "_sizes", "_strides")

    def __init__(self, *, offset: int, sizes: Sequence[int], strides: Sequence[int]) -> None:
        if len(sizes) != len(strides):
            raise ValueError(f"{len(sizes)} sizes do not match {len(strides)} strides")
        if offset < 0 or any(number < 0 for number in (*sizes, *strides)):
            raise ValueError(
                f"offset, sizes and strides must not be negative: "
                f"offset={offset}, sizes={list(sizes)}, strides={list(strides)}"
            )
        self._offset = offset
        self._sizes = tuple(sizes)
        self._strides = tuple(strides)
        self._len = math.prod(self._sizes)
        # Dimensions of size 1 never step, so that their stride means nothing.
        self._by_stride = sorted(
            (dim for dim, size in enumerate(self._sizes) if size > 1),
            key=self._strides.__getitem__,
            reverse=True,
        )
        reach = 0
        for dim in reversed(self._by_stride) if self._len else ():
            if self._strides[dim] <= reach:
                raise ValueError(f"strides overlap: sizes={list(sizes)}, strides={list(strides)}")
            reach += (self._sizes[dim] - 1) * self._strides[dim]

    @staticmethod
    def new_row_major(sizes: Sequence[int]) -> Slice:
        """Return the dense slice of ranks 0 to N-1 with these sizes, last dimension fastest."""
        return Slice(offset=0, sizes=sizes, strides=row_major_strides(sizes))

    @staticmethod
    def from_list(ranks: Sequence[int]) -> list[Slice]:
        """Cover `ranks`, in their order, with as few evenly spaced runs as a greedy pass finds."""
        slices = []
        start = 0
        while start < len(ranks):
            end, stride = start + 1, 1
            if end < len(ranks) and ranks[end] > ranks[start]:
                stride = ranks[end] - ranks[start]
            while end < len(ranks) and ranks[end] - ranks[end - 1] == stride:
                end += 1
            slices.append(Slice(offset=ranks[start], sizes=[end - start], strides=[stride]))
            start = end
        return slices

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._sizes)

    @property
    def offset(self) -> int:
        """Return the first rank."""
        return self._offset

    @property
    def sizes(self) -> list[int]:
        """The length of each dimension."""
        return list(self._sizes)

    @property
    def strides(self) -> list[int]:
        """The distance in ranks between neighbours along each dimension."""
        return list(self._strides)

    def coordinates(self, value: int) -> list[int]:
        """Return the coordinates of rank `value`; raises ValueError if it is not in the slice."""
        rest = value - self._offset
        coordinates = [0] * len(self._sizes)
        if rest < 0 or self._len == 0:
            raise ValueError(f"value {value} not in {self!r}")
        for dim in self._by_stride:
            coordinates[dim], rest = divmod(rest, self._strides[dim])
            if coordinates[dim] >= self._sizes[dim]:
                raise ValueError(f"value {value} not in {self!r}")
        if rest:
            raise ValueError(f"value {value} not in {self!r}")
        return coordinates

    def index(self, value: int) -> int:
        """Return the position of rank `value` in row-major order; ValueError if it is not there."""
        position = 0
        for coordinate, size in zip(self.coordinates(value), self._sizes, strict=True):
            position = position * size + coordinate
        return position

    def nditem(self, coordinates: Sequence[int]) -> int:
        """Return the rank at `coordinates`; IndexError if they are out of range."""
        if len(coordinates) != len(self._sizes):
            raise IndexError(f"expected {len(self._sizes)} coordinates, got {len(coordinates)}")
        rank = self._offset
        for coordinate, size, stride in zip(coordinates, self._sizes, self._strides, strict=True):
            if not 0 <= coordinate < size:
                raise IndexError("index out of range")
            rank += coordinate * stride
        return rank

    def get(self, index: int) -> int:
        """Return the rank at position `index` in row-major order; IndexError if it is out of range.

        The inverse of `index`.
        """
        if not 0 <= index < self._len:
            raise IndexError("index out of range")
        rank = self._offset
        for size, stride in zip(reversed(self._sizes), reversed(self._strides), strict=True):
            index, coordinate = divmod(index, size)
            rank += coordinate * stride
        return rank

    @overload
    def __getitem__(self, i: int) -> int: ...
    @overload
    def __getitem__(self, i: slice) -> tuple[int, ...]: ...
    def __getitem__(self, i: int | slice) -> int | tuple[int, ...]:
        if isinstance(i, slice):
            return tuple(self.get(k) for k in range(*i.indices(self._len)))
        if i < 0:
            raise TypeError(f"slice index must not be negative, got {i}")
        return self.get(i)

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int):
            return False
        try:
            self.coordinates(value)
        except ValueError:
            return False
        return True

    def __iter__(self) -> Iterator[int]:
        steps = (
            range(0, size * stride, stride) if stride else (0,) * size
            for size, stride in zip(self._sizes, self._strides, strict=True)
        )
        return (self._offset + sum(step) for step in itertools.product(*steps))

    def __len__(self) -> int:
        return self._len

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Slice):
            return NotImplemented
        return self._fields == other._fields

    def __hash__(self) -> int:
        return hash(self._fields)

    def __reduce__(self) -> tuple[object, ...]:
        return _slice, self._fields

    @property
    def _fields(self) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        return self._offset, self._sizes, self._strides

    def __repr__(self) -> str:
        return (
            f"Slice {{ offset: {self._offset}, sizes: {list(self._sizes)}, "
            f"strides: {list(self._strides)} }}"
        )


def row_major_strides(sizes: Sequence[int]) -> list[int]:
    """Return the strides of a dense layout of `sizes`, last dimension fastest."""
    products = itertools.accumulate(reversed(sizes), lambda a, b: a * b, initial=1)
    return list(products)[: len(sizes)][::-1]


def _slice(offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Slice:
    return Slice(offset=offset, sizes=sizes, strides=strides)
