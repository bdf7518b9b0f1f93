"""Named spaces of ranks.

Four views of the same ranks. The public API converts each into the others, so they share a file:

    Extent   dimension names and sizes. Ranks 0 to N-1, row-major
    Point    one rank of an extent, and so one coordinate for each dimension
    Shape    names for the dimensions of a Slice: some ranks of a larger space. It can be narrowed
    Region   the same as a shape, seen from the larger space: base rank -> point
"""

from __future__ import annotations

import builtins
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import final

from monarch.mesh.slice import Slice

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class DimensionNotFound(ValueError, KeyError):
    """A point or an extent was asked for a dimension that it does not have.

    Both a ValueError, as the public API promises, and the KeyError of a mapping.
    """

    def __str__(self) -> str:
        return Exception.__str__(self)


@final
class Extent(Mapping[str, int]):
    """An immutable mapping from dimension name to size, in order.

    Its `len` is the number of dimensions; `nelements` is the number of ranks.
    """

    __slots__ = ("_labels", "_sizes")

    def __init__(self, labels: Sequence[str], sizes: Sequence[int]) -> None:
        _check_labels(labels, len(sizes))
        if any(size < 0 for size in sizes):
            raise ValueError(f"sizes must not be negative: {list(sizes)}")
        self._labels = tuple(labels)
        self._sizes = tuple(sizes)

    @property
    def labels(self) -> list[str]:
        """The dimension names, outermost first."""
        return list(self._labels)

    @property
    def sizes(self) -> list[int]:
        """The length of each dimension."""
        return list(self._sizes)

    @property
    def nelements(self) -> int:
        """The number of ranks; 1 for an extent without dimensions."""
        return math.prod(self._sizes)

    @property
    def region(self) -> Region:
        """Return the region of all ranks of this extent."""
        return Region(self._labels, Slice.new_row_major(self._sizes))

    def __getitem__(self, label: str) -> int:
        return self._sizes[_dim(self._labels, label)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Extent):
            return NotImplemented
        return self._labels == other._labels and self._sizes == other._sizes

    def __hash__(self) -> int:
        return hash((self._labels, self._sizes))

    def __reduce__(self) -> tuple[object, ...]:
        return Extent, (self._labels, self._sizes)

    def __repr__(self) -> str:
        sizes = (
            f"{label if _IDENTIFIER.fullmatch(label) else json.dumps(label)}: {size}"
            for label, size in self.items()
        )
        return f"{{{', '.join(sizes)}}}"


@final
class Point(Mapping[str, int]):
    """An immutable mapping from dimension name to coordinate, for one rank in `extent`.

    `mesh.slice(**point)` is the member of a mesh at that point.
    """

    __slots__ = ("_extent", "_rank")

    def __init__(self, rank: int, extent: Extent) -> None:
        if not 0 <= rank < extent.nelements:
            raise ValueError(f"rank {rank} is out of range for extent {extent!r}")
        self._rank = rank
        self._extent = extent

    @property
    def rank(self) -> int:
        """The position in row-major order."""
        return self._rank

    @property
    def extent(self) -> Extent:
        """The space that this is a point of."""
        return self._extent

    def size(self, label: str) -> int:
        """Return the length of the dimension `label`."""
        return self._extent[label]

    def __getitem__(self, label: str) -> int:
        dim = _dim(self._extent._labels, label)
        sizes = self._extent._sizes
        return self._rank // math.prod(sizes[dim + 1 :]) % sizes[dim]

    def __iter__(self) -> Iterator[str]:
        return iter(self._extent._labels)

    def __len__(self) -> int:
        return len(self._extent)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Point):
            return NotImplemented
        return self._rank == other._rank and self._extent == other._extent

    def __hash__(self) -> int:
        return hash((self._rank, self._extent))

    def __reduce__(self) -> tuple[object, ...]:
        return Point, (self._rank, self._extent)

    def __repr__(self) -> str:
        coordinates = (f"'{label}': {self[label]}/{self.size(label)}" for label in self)
        return f"{{{', '.join(coordinates)}}}"


class _Labeled:
    """A slice and the names of its dimensions: the common part of a shape and a region."""

    __slots__ = ("_labels", "_slice")

    def __init__(self, labels: Sequence[str], slice: Slice) -> None:
        _check_labels(labels, slice.ndim)
        self._labels = tuple(labels)
        self._slice = slice

    @property
    def labels(self) -> list[str]:
        """The dimension names, outermost first."""
        return list(self._labels)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self._labels == other._labels and self._slice == other._slice

    def __hash__(self) -> int:
        return hash((self._labels, self._slice))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._labels, self._slice)

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name} {{ labels: {json.dumps(self.labels)}, slice: {self._slice!r} }}"


@final
class Shape(_Labeled):
    """A slice whose dimensions have names. Its `len` is the number of ranks."""

    __slots__ = ()

    @staticmethod
    def unity() -> Shape:
        """Return the shape without dimensions: rank 0 alone."""
        return Shape((), Slice(offset=0, sizes=(), strides=()))

    @property
    def ndslice(self) -> Slice:
        """The ranks, without the names."""
        return self._slice

    @property
    def extent(self) -> Extent:
        """The names and sizes alone; its ranks count from 0."""
        return Extent(self._labels, self._slice.sizes)

    @property
    def region(self) -> Region:
        """Return the ranks of this shape as a region of the space that they were taken from."""
        return Region(self._labels, self._slice)

    def ranks(self) -> list[int]:
        """Return all ranks in row-major order."""
        return list(self._slice)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinates of `rank`; raises ValueError if it is not in the shape."""
        return dict(zip(self._labels, self._slice.coordinates(rank), strict=True))

    def at(self, label: str, index: int) -> Shape:
        """Take position `index` along `label`, and drop that dimension.

        Raises ValueError for an unknown position or dimension, OverflowError for a negative
        position.
        """
        dim = _dim(self._labels, label)
        old = self._slice
        if index < 0:
            raise OverflowError(f"positions count from 0, and {label}={index} is negative")
        if index >= old.sizes[dim]:
            raise ValueError(f"index {index} is out of range for {label} of size {old.sizes[dim]}")
        sizes, strides = old.sizes, old.strides
        del sizes[dim]
        offset = old.offset + index * strides.pop(dim)
        labels = self._labels[:dim] + self._labels[dim + 1 :]
        return Shape(labels, Slice(offset=offset, sizes=sizes, strides=strides))

    def select(self, label: str, slice: builtins.slice) -> Shape:
        """Keep the positions that `slice` picks along `label`; ValueError if it picks none."""
        dim = _dim(self._labels, label)
        sizes, strides = self._slice.sizes, self._slice.strides
        picked = range(*slice.indices(sizes[dim]))
        if picked.step < 0:
            raise ValueError(f"a mesh cannot be reversed: {label}={slice}")
        if not picked:
            raise ValueError(f"{label}={slice} selects nothing of size {sizes[dim]}")
        offset = self._slice.offset + picked.start * strides[dim]
        sizes[dim] = len(picked)
        strides[dim] *= picked.step
        return Shape(self._labels, Slice(offset=offset, sizes=sizes, strides=strides))

    def index(self, **indices: int) -> Shape:
        """Apply `at` to several dimensions: `shape.index(hosts=0, gpus=3)`."""
        shape = self
        for label, index in indices.items():
            shape = shape.at(label, index)
        return shape

    def __len__(self) -> int:
        return len(self._slice)

    def __str__(self) -> str:
        sizes = (f"{label}={size}" for label, size in self.extent.items())
        return f"{{{','.join(sizes)}}}"


@final
class Region(_Labeled):
    """Some ranks of a larger space, as a hyper-rectangle with named dimensions."""

    __slots__ = ()

    def slice(self) -> Slice:
        """The ranks, without the names."""
        return self._slice

    def as_shape(self) -> Shape:
        """Return the ranks of this region as a shape."""
        return Shape(self._labels, self._slice)

    def point_of_base_rank(self, rank: int) -> Point:
        """Return the point in this region of a rank in the larger space; ValueError if it is
        outside."""
        return Point(self._slice.index(rank), Extent(self._labels, self._slice.sizes))


def _check_labels(labels: Sequence[str], num_dims: int) -> None:
    if len(labels) != num_dims:
        raise ValueError(f"{len(labels)} labels {list(labels)} do not match {num_dims} dimensions")
    if len(set(labels)) != len(labels):
        raise ValueError(f"duplicate dimension labels: {list(labels)}")


def _dim(labels: tuple[str, ...], label: str) -> int:
    try:
        return labels.index(label)
    except ValueError:
        raise DimensionNotFound(f"Dimension '{label}' not found") from None
