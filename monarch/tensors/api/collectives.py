"""The methods of ``Tensor`` that send something, for all tensors in a tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch.tensors.client.collectives import MeshSliceTensor
from monarch.tensors.client.tensor import Tensor
from monarch.tensors.core.specs import SpecMaker, fill


def _of_each(tree: Any, change: Callable[[Tensor], Any]) -> Any:
    maker = SpecMaker(lambda value: isinstance(value, Tensor), frozenset())
    spec = maker.spec(tree)
    return fill(spec, [change(tensor) for tensor in maker.tensors])


def reduce(tree: Any, *args: Any, **kwargs: Any) -> Any:
    """``Tensor.reduce`` of each."""
    return _of_each(tree, lambda tensor: tensor.reduce(*args, **kwargs))


def reduce_(tree: Any, *args: Any, **kwargs: Any) -> Any:
    """``Tensor.reduce_`` of each."""
    return _of_each(tree, lambda tensor: tensor.reduce_(*args, **kwargs))


def to_mesh(tree: Any, *args: Any, **kwargs: Any) -> Any:
    """``to_mesh`` of each, of slices that ``slice_mesh`` gave too."""
    kinds = (Tensor, MeshSliceTensor)
    maker = SpecMaker(lambda value: isinstance(value, kinds), frozenset())
    spec = maker.spec(tree)
    return fill(spec, [one.to_mesh(*args, **kwargs) for one in maker.tensors])


def slice_mesh(tree: Any, *args: Any, **kwargs: Any) -> Any:
    """``Tensor.slice_mesh`` of each."""
    return _of_each(tree, lambda tensor: tensor.slice_mesh(*args, **kwargs))
