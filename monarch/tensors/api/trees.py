"""Functions of trees of tensors: they fetch the values, or call a method of each ``Tensor``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch

from monarch.actor import Future
from monarch.tensors.client.ambient import Activation, ambient, get_active_mesh
from monarch.tensors.client.collectives import MeshSliceTensor
from monarch.tensors.client.refusals import find_problem, incorrect
from monarch.tensors.client.tensor import Tensor
from monarch.tensors.core.specs import fill, take_apart


def fetch_shard(
    obj: Any, shard: Mapping[str, int] | None = None, **coordinates: int
) -> Future[Any]:
    """Return a future of one shard of a tensor, or of all tensors in a tree.

    The shards are tensors on the CPU of this process. ``shard``, or keywords, are the coordinates:
    all of them, or none for the first shard. The future raises ``RemoteException`` if an operation
    that the values depend on failed, on any rank.
    """
    spec, tensors = take_apart(obj, torch.Tensor)
    mesh = next((t.mesh for t in tensors if isinstance(t, Tensor)), None) or get_active_mesh()

    def problem_of(tensor: Any) -> str | None:
        return find_problem(tensor, mesh, getattr(tensor, "stream", ambient.stream))

    if any(problem_of(tensor) is not None for tensor in tensors):
        raise incorrect("fetch_shard", (obj,), {}, problem_of)
    rank = mesh.check_shard({**(shard or {}), **coordinates})
    refs = [tensor._ref for tensor in tensors]
    fetched = mesh.client.fetch((rank,), refs)
    return fetched.then(lambda values: fill(spec, values[rank]))  # type: ignore[no-any-return]


def inspect(obj: Any, shard: Mapping[str, int] | None = None, **coordinates: int) -> Any:
    """Return a shard as ``fetch_shard`` does, but wait for it."""
    return fetch_shard(obj, shard, **coordinates).result()


def show(obj: Any, shard: Mapping[str, int] | None = None, **coordinates: int) -> Any:
    """Draw a shard with the package ``torchshow``, and return what that returns.

    Raises ``ImportError`` if the package is not installed.
    """
    value = inspect(obj, shard, **coordinates)
    try:
        torchshow = import_module("torchshow")
    except ImportError:
        raise ImportError("monarch.show draws with torchshow: pip install torchshow") from None
    with Activation(mesh=None):
        return torchshow.show(value)


def _of_each(tree: Any, change: Callable[[Tensor], Any]) -> Any:
    spec, tensors = take_apart(tree, Tensor)
    return fill(spec, [change(tensor) for tensor in tensors])


def reduce(tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the tree with the result of ``Tensor.reduce`` in place of each tensor."""
    return _of_each(tensors, lambda tensor: tensor.reduce(*args, **kwargs))


def reduce_(tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the tree with the result of ``Tensor.reduce_`` in place of each tensor."""
    return _of_each(tensors, lambda tensor: tensor.reduce_(*args, **kwargs))


def to_mesh(tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the tree with the result of ``to_mesh`` in place of each tensor.

    The tree may also have results of ``slice_mesh``.
    """
    spec, parts = take_apart(tensors, (Tensor, MeshSliceTensor))
    return fill(spec, [part.to_mesh(*args, **kwargs) for part in parts])


def slice_mesh(tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the tree with the result of ``Tensor.slice_mesh`` in place of each tensor."""
    return _of_each(tensors, lambda tensor: tensor.slice_mesh(*args, **kwargs))
