"""ValueMesh: one value for every member of a mesh, such as the replies to a call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, NoReturn, TypeVar, final

from monarch.mesh.mesh_trait import ShapedMesh, check_coordinates, known_dimensions
from monarch.mesh.region import Point, Shape

R = TypeVar("R")

_NO_RANK: Any = object()


@final
class ValueMesh(ShapedMesh, Generic[R]):
    """Values over a shape. Iteration yields `(Point, value)`, points counted from 0.

    `values` may be lazy: an item is read only when it is needed, and slices share the sequence.
    """

    def __init__(self, shape: Shape, values: Sequence[R]) -> None:
        if len(values) != len(shape):
            raise ValueError(f"{len(values)} values do not fill a shape of {len(shape)} ranks")
        self._shape = shape
        self._values = values
        self._positions: Sequence[int] = range(len(values))

    @staticmethod
    def from_indexed(shape: Shape, pairs: Iterable[tuple[int, R]]) -> ValueMesh[R]:
        """Build a mesh from `(rank, value)` pairs, with ranks counted from 0.

        Of several pairs with one rank the last one counts. Raises ValueError if a rank has no pair,
        or is out of range.
        """
        by_rank = dict(pairs)
        num_ranks = len(shape)
        outside = sorted(rank for rank in by_rank if not 0 <= rank < num_ranks)
        if outside:
            raise ValueError(f"ranks {outside} are out of range (len={num_ranks})")
        missing = [rank for rank in range(num_ranks) if rank not in by_rank]
        if missing:
            raise ValueError(
                f"no value for ranks {missing}: expected {num_ranks} values, but the input "
                f"contains {len(by_rank)}"
            )
        return ValueMesh(shape, [by_rank[rank] for rank in range(num_ranks)])

    def items(self) -> Iterator[tuple[Point, R]]:
        """Yield every point of this mesh with its value."""
        extent = self._shape.extent
        return ((Point(i, extent), self.get(i)) for i in range(len(self)))

    def values(self) -> list[R]:
        """Return the values alone, in rank order."""
        return [self.get(i) for i in range(len(self))]

    def __getitem__(self, key: object) -> NoReturn:
        raise TypeError(
            f"a ValueMesh has names for its dimensions: `.item({self._at_0()})` is one value, "
            "`.get(rank)` that of a rank, `.values()` all of them"
        )

    def _at_0(self) -> str:
        return ", ".join(f"{label}=0" for label in self._labels)

    def get(self, rank: int = _NO_RANK) -> R:
        """Return the value at `rank`, counted from 0 within this mesh; ValueError if it is out of
        range.
        """
        if rank is _NO_RANK:
            raise TypeError(
                "these are the values already, and no future: `.get(rank)` is that of a rank, "
                "`.values()` all of them"
            )
        if not 0 <= rank < len(self):
            raise ValueError(
                f"index {rank} out of range (len={len(self)}): ranks are 0 to {len(self) - 1}"
            )
        return self._values[self._positions[rank]]

    def item(self, *unnamed: NoReturn, **coordinates: int) -> R:
        """Return the value at the given coordinates, one for each dimension; a mesh without
        dimensions needs none."""
        as_in = f"as in `.item({self._at_0()})`"
        if unnamed:
            raise TypeError(f"item takes coordinates by name, {as_in}")
        extra = [label for label in coordinates if label not in self._labels]
        if extra:
            dimensions = known_dimensions(self._labels, self.sizes, extra[0])
            raise KeyError(f"item has extra dimensions: {extra}; {dimensions}")
        missing = [label for label in self._labels if label not in coordinates]
        if missing:
            raise KeyError(f"item is missing dimensions: {missing}; {as_in}")
        check_coordinates(self.sizes, coordinates)
        ndslice = self._shape.ndslice
        return self.get(ndslice.index(ndslice.nditem([coordinates[d] for d in self._labels])))

    @property
    def shape(self) -> Shape:
        """The names, sizes and ranks of this mesh."""
        return self._shape

    def __iter__(self) -> Iterator[tuple[Point, R]]:
        return self.items()

    def _new_with_shape(self, shape: Shape) -> ValueMesh[R]:
        old = self._shape.ndslice
        part: ValueMesh[R] = ValueMesh.__new__(ValueMesh)
        part._shape = shape
        part._values = self._values
        part._positions = [self._positions[old.index(rank)] for rank in shape.ndslice]
        return part

    def __reduce__(self) -> tuple[object, ...]:
        return ValueMesh, (self._shape, self.values())

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows, with equal values in one row."""
        from monarch.mesh import html  # In notebooks only.

        by_rank = dict(enumerate(self.values()))
        return html.values(f"ValueMesh {self._shape.extent}", by_rank)

    def __repr__(self) -> str:
        lines = "".join(f"  ({point}, {value!r}),\n" for point, value in self.items())
        return f"ValueMesh({self._shape.extent}):\n(\n{lines})"
