"""MeshTrait: the methods of every mesh, be it of hosts, procs, actors or values."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from monarch.mesh.region import Extent, Shape
from monarch.mesh.slice import Slice, row_major_strides

Self = TypeVar("Self", bound="MeshTrait")


class MeshTrait(ABC):
    """Slicing and reshaping for any mesh that can be rebuilt over a part of its shape.

    A shape that is passed to `_new_with_shape` contains only ranks that the mesh has now.
    """

    @property
    @abstractmethod
    def _ndslice(self) -> Slice: ...

    @property
    @abstractmethod
    def _labels(self) -> Sequence[str]: ...

    @abstractmethod
    def _new_with_shape(self: Self, shape: Shape) -> Self: ...

    def __getitem__(self, key: object) -> Any:
        names = ", ".join(f"{label}=0" for label in self._labels)
        raise TypeError(
            f"a mesh has names for its dimensions: `.slice({names})` is one member, and "
            f"`.slice({self._labels[0] if self._labels else 'dim'}=slice(0, 2))` some"
        )

    def slice(self: Self, *unnamed: NoReturn, **selectors: Any) -> Self:
        """Select along named dimensions: an int drops the dimension, a slice keeps it.

        `mesh.slice(hosts=0)`, `mesh.slice(gpus=slice(2, 6))`, `mesh.slice(**point)`. An int that
        is negative or too large raises IndexError, an unknown dimension TypeError.
        """
        sizes = self.sizes
        if unnamed:
            names = ", ".join(f"{label}=0" for label in self._labels)
            raise TypeError(f"slice takes dimensions by name, as in `.slice({names})`")
        shape = Shape(self._labels, self._ndslice)
        for label, selector in selectors.items():
            if label not in self._labels:
                dimensions = known_dimensions(self._labels, sizes, label)
                raise TypeError(f"Shape does not have dimension labeled {label!r}; {dimensions}")
            if isinstance(selector, slice):
                shape = shape.select(label, selector)
            else:
                check_coordinates(sizes, {label: selector})
                shape = shape.at(label, selector)
        return self._new_with_shape(shape)

    def split(self: Self, **arguments: Any) -> Self:
        """Split dimensions: `mesh.split(hosts=("dp", "pp"), pp=2)`.

        Give all sizes but one of the parts of a dimension; the last follows from the others.
        """
        splits: dict[str, Sequence[str]] = {}
        new_sizes: dict[str, int] = {}
        for key, value in arguments.items():
            if key in self._labels:
                if isinstance(value, str):
                    raise ValueError(f"expected a sequence of dimensions, but got '{value}'")
                splits[key] = tuple(value)
            elif isinstance(value, int):
                new_sizes[key] = value
            else:
                raise ValueError(
                    f"'{key}' is not an existing dim. "
                    "Expected an integer size constraint on a new dim."
                )

        labels: list[str] = []
        sizes: list[int] = []
        strides: list[int] = []
        ndslice = self._ndslice
        for label, size, stride in zip(self._labels, ndslice.sizes, ndslice.strides, strict=True):
            parts = splits.get(label, (label,))
            part_sizes = _part_sizes(label, size, parts, new_sizes)
            labels.extend(parts)
            sizes.extend(part_sizes)
            strides.extend(stride * step for step in row_major_strides(part_sizes))
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"Duplicate dimension name '{label}'")
        unused = tuple(key for key in new_sizes if key not in labels)
        if unused:
            raise ValueError(f"unused size constraints: {unused}")
        return self._new_with_shape(
            Shape(labels, Slice(offset=ndslice.offset, sizes=sizes, strides=strides))
        )

    def flatten(self: Self, name: str) -> Self:
        """Merge all dimensions into one called `name`. Only for a mesh of contiguous ranks."""
        ndslice = self._ndslice
        strides, dense = ndslice.strides, row_major_strides(ndslice.sizes)
        layout = zip(ndslice.sizes, strides, dense, strict=True)
        if any(size > 1 and stride != dense_stride for size, stride, dense_stride in layout):
            raise ValueError(
                f"cannot flatten sparse mesh: strides {strides} are not the dense {dense}"
            )
        flat = Slice(offset=ndslice.offset, sizes=[len(ndslice)], strides=[1])
        return self._new_with_shape(Shape([name], flat))

    def rename(self: Self, **names: str) -> Self:
        """Rename dimensions: `mesh.rename(hosts="dp")`. The others keep their names."""
        return self.split(**{old: (new,) for old, new in names.items()})

    def size(self, dim: str | Sequence[str] | None = None) -> int:
        """Return the number of members along `dim`, along several dims together, or of the whole
        mesh.

        Raises KeyError for an unknown dimension.
        """
        if dim is None:
            return len(self._ndslice)
        if not isinstance(dim, str):
            return math.prod(self.size(d) for d in dim)
        if dim not in self._labels:
            dimensions = known_dimensions(self._labels, self.sizes, dim)
            raise KeyError(f"{self} does not have dimension {dim!r}; {dimensions}")
        return self.sizes[dim]

    @property
    def sizes(self) -> dict[str, int]:
        """The length of each dimension, by name."""
        return dict(zip(self._labels, self._ndslice.sizes, strict=True))

    @property
    def extent(self) -> Extent:
        """The names and sizes of the dimensions."""
        return Extent(self._labels, self._ndslice.sizes)

    def __len__(self) -> int:
        return len(self._ndslice)


def known_dimensions(labels: Sequence[str], sizes: Mapping[str, int], wanted: str) -> str:
    """Return a text that lists the dimensions, for the error about an unknown dimension."""
    import difflib  # For mistakes only.

    if not labels:
        return "there are none: it has one member"
    near = difflib.get_close_matches(wanted, labels, 1)
    listed = ", ".join(f"{label} ({sizes[label]})" for label in labels)
    hint = f". Did you mean {near[0]!r}?" if near else ""
    return f"there {'is' if len(labels) == 1 else 'are'} {listed}{hint}"


def check_coordinates(sizes: Mapping[str, int], coordinates: Mapping[str, Any]) -> None:
    """Raise ``IndexError`` for a coordinate out of range, ``TypeError`` for a coordinate that is no
    number.
    """
    for label, value in coordinates.items():
        size = sizes[label]
        try:
            is_in = 0 <= value < size
        except TypeError:
            raise TypeError(f"{label}={value!r} is neither a number nor a slice(...)") from None
        if not is_in:
            raise IndexError(
                f"index out of range: {label}={value}, and {label} has {size} (0 to {size - 1})"
            )


def _part_sizes(label: str, size: int, parts: Sequence[str], sizes: dict[str, int]) -> list[int]:
    unknown = [part for part in parts if part not in sizes]
    if len(unknown) > 1:
        raise ValueError(
            f"Cannot infer size of {parts} because both {unknown[1]} and {unknown[0]} have "
            f"unknown size. Specify at least one as argument, e.g. {unknown[1]}=4"
        )
    product = math.prod(sizes[part] for part in parts if part in sizes)
    divisible = product > 0 and size % product == 0 if unknown else product == size
    if not divisible:
        wanted = tuple(sizes.get(part, "?") for part in parts)
        raise ValueError(
            f"Dimension '{label}' of size {size} is not evenly divided by "
            f"{parts!r} with sizes {wanted!r}"
        )
    return [sizes[part] if part in sizes else size // product for part in parts]


class ShapedMesh(MeshTrait):
    """A mesh that keeps its own shape, as ``_shape``."""

    _shape: Shape

    @property
    def _ndslice(self) -> Slice:
        return self._shape.ndslice

    @property
    def _labels(self) -> Sequence[str]:
        return self._shape.labels
