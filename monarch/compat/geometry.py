"""Helpers for shapes that programs import beside the shapes themselves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from monarch.mesh import MeshTrait, Shape, Slice

Slices = Slice | list[Slice]


def iter_ranks(ranks: Slices) -> Iterator[int]:
    """Yield the ranks of one slice, or of several, each once."""
    slices = ranks if isinstance(ranks, list) else [ranks]
    yield from dict.fromkeys(itertools.chain.from_iterable(slices))


class ShapeExt:
    """Methods that a mesh has, for a ``Shape`` without members."""

    @staticmethod
    def slice(shape: Shape, **selectors: Any) -> Shape:
        """Slice a shape like ``mesh.slice``: an int drops the dimension, a slice keeps it."""
        return _Bare(shape).slice(**selectors).shape


class _Bare(MeshTrait):
    """A mesh without members, which has only a shape."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    @property
    def _ndslice(self) -> Slice:
        return self.shape.ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(self.shape.labels)

    def _new_with_shape(self, shape: Shape) -> _Bare:
        return _Bare(shape)
