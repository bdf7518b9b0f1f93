"""Reductions over dimensions of a mesh, and copies to another mesh."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from monarch.mesh import MeshTrait
from monarch.tensors.client.ambient import TensorStream, ambient
from monarch.tensors.client.issuing import builtin
from monarch.tensors.client.propagation import contiguous_meta
from monarch.tensors.client.refusals import refuse_grad, refuse_unusable
from monarch.tensors.client.tensor import Tensor, new_handle
from monarch.tensors.core.specs import CallSpec
from monarch.tensors.core.templates import FRESH, INPUT_ITSELF, Result

REDUCTIONS = ("stack", "sum", "avg", "product", "min", "max", "band", "bor", "bxor")


def reduce(
    tensor: Tensor,
    dims: str | Sequence[str],
    reduction: str,
    *,
    scatter: bool,
    inplace: bool,
    mesh: Any,
    out: Tensor | None,
) -> Any:
    """Issue a reduction; see ``Tensor.reduce``.

    Raises ``KeyError`` for an unknown dimension, and ``ValueError`` or ``TypeError`` if the
    reduction is not possible for the tensor or ``out``.
    """
    if mesh is not None:
        raise NotImplementedError(
            "reduce(mesh=...): reduce on the tensor's own mesh, and use to_mesh for the result"
        )
    own = tensor.mesh
    dims = _dims(own, dims, reduction, scatter)
    if inplace and (scatter or reduction == "stack"):
        raise ValueError(
            f"reduction {reduction} with scatter = {scatter} is not valid for in-place operation "
            "because the result has another size than the tensor: use reduce"
        )
    refuse_grad("reduce", tensor)
    refuse_unusable("reduce", tensor, own, ambient.stream)
    num = own.size(dims)
    size = _result_size(tuple(tensor.shape), num, reduction, scatter)
    if out is not None:
        return _reduce_into(out, tensor, dims, reduction, scatter, size)
    client = own.client
    client.meet()
    looks = (tuple(tensor.shape), tensor.dtype, str(tensor.device))
    result = (
        Result(INPUT_ITSELF, None, 0)
        if inplace
        else Result(FRESH, contiguous_meta(size, tensor.dtype, tensor.device))
    )
    spec = CallSpec([("t", 0)], [], 1, 0, [None if inplace else ()])
    stream, how = ambient.stream, (reduction, scatter, inplace)
    definition = ("reduce", own.number, dims, stream.number, how, looks, spec)
    if inplace:
        tensor._storage.is_known = False
    mutates = (0,) if inplace else ()
    return builtin(own, stream, definition, [tensor], results=[result], mutates=mutates)


def _dims(mesh: Any, dims: str | Sequence[str], reduction: str, scatter: bool) -> tuple[str, ...]:
    if not isinstance(dims, Iterable):
        raise TypeError(
            f"dims is the name of a dimension of the mesh, or several names, not {dims!r}: reduce "
            f"along {mesh.names}"
        )
    dims = (dims,) if isinstance(dims, str) else tuple(dims)
    for dim in dims:
        if dim not in mesh.names:
            raise KeyError(f"dim {dim} not found in {mesh}: reduce along {mesh.names}")
    if len(set(dims)) < len(dims):
        raise ValueError(f"reducing the same dimension twice: name each once, of {dims}")
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction {reduction} not supported, reductions are {REDUCTIONS}")
    dims = dims or tuple(mesh.names)
    if len(dims) > 1 and (reduction == "stack" or scatter):
        raise ValueError(
            f"reduction {reduction} or scatter = {scatter} is not valid for multiple dimensions: "
            "do it along one, or on a mesh of one dimension, mesh.flatten(name)"
        )
    return dims


def _result_size(size: tuple[int, ...], num: int, reduction: str, scatter: bool) -> tuple[int, ...]:
    if scatter and (not size or size[0] != num):
        raise TypeError(
            "When scattering results the outer most dimension of tensor with sizes "
            f"({list(size)} must match the size ({num}) of the mesh dimension: reshape it to that"
        )
    if (reduction == "stack") == scatter:
        return size
    return (num, *size) if reduction == "stack" else size[1:]


def _reduce_into(
    out: Tensor,
    tensor: Tensor,
    dims: tuple[str, ...],
    reduction: str,
    scatter: bool,
    size: tuple[int, ...],
) -> Tensor:
    if tuple(out.shape) != size:
        raise ValueError(
            f"The given output shape, {out.shape}, is incorrect. Reduce expects the shape to be "
            f"{torch.Size(size)}. Make out of that shape, or leave it out"
        )
    with torch.no_grad():
        reduced = reduce(
            tensor, dims, reduction, scatter=scatter, inplace=False, mesh=None, out=None
        )
        out.copy_(reduced)
        # A handle of its own, with the memory of `out`.
        return out.view_as(out)  # type: ignore[no-any-return]


class MeshSliceTensor:
    """The shards of a tensor on a part of its mesh, to be copied elsewhere with ``to_mesh``."""

    def __init__(self, tensor: Tensor, mesh: Any) -> None:
        self.tensor = tensor
        self.slicing = mesh

    def to_mesh(self, mesh: Any, stream: TensorStream | None = None) -> Tensor:
        """Copy the shards to another mesh; see ``Tensor.to_mesh``.

        Raises ``ValueError`` if ``mesh`` is of other procs, lacks a dimension of the part, or has
        another size along one.
        """
        tensor, source = self.tensor, self.slicing
        if not isinstance(mesh, MeshTrait):
            raise TypeError(
                f"to_mesh takes a mesh of procs, or a slice of one, not a {type(mesh).__name__}"
            )
        mesh = getattr(mesh, "_device_mesh", mesh)
        if mesh.client is not tensor.mesh.client:
            raise ValueError(
                f"{mesh} belongs to other procs than {tensor.mesh}: tensors move between slices "
                "of one proc mesh. Spawn one mesh, and slice it"
            )
        refuse_grad("to_mesh", tensor)
        own = tensor.stream
        refuse_unusable("to_mesh", tensor, tensor.mesh, own)
        pairs = _pairs(source, mesh)
        client = mesh.client
        client.meet()
        everybody = client.everybody
        meta = contiguous_meta(tensor.shape, tensor.dtype, tensor.device)
        looks = (tuple(tensor.shape), tensor.dtype, str(tensor.device))
        definition = ("passage", pairs, own.number, looks)
        moved = builtin(everybody, own, definition, [tensor], results=[Result(FRESH, meta)])
        arrived = new_handle(meta, _released(moved), mesh, own)
        if stream is None or stream is own:
            return arrived
        return mesh.move_to_stream(arrived, stream)  # type: ignore[no-any-return]


def _released(tensor: Tensor) -> int:
    """Return the reference of a handle, and take it away: the caller gives it to a new handle."""
    ref = tensor._ref
    assert ref is not None
    tensor._ref = None
    return ref


def _pairs(source: Any, target: Any) -> tuple[tuple[int, int], ...]:
    """Return the pairs (sending rank, receiving rank) of a copy between meshes."""
    missing = set(source.names) - set(target.names)
    if missing:
        raise ValueError(
            f"destination mesh does not have dimensions {missing}: slice the tensor to one place "
            "along them (t.slice_mesh(...)), or rename or flatten the mesh"
        )
    for name in source.names:
        if source.size(name) != target.size(name):
            raise ValueError(
                f"dimension {name} of destination device_mesh has a different length than the "
                f"source tensor: {target.size(name)}, not {source.size(name)}. Slice one of them"
            )
    only = [name for name in target.names if name not in source.names]
    if any(target.size(name) > 1 for name in only):
        warnings.warn(
            f"to_mesh copies to each place along {only}, which the source does not have: that is a "
            "broadcast, slower than a copy to one place",
            stacklevel=3,
        )
    pairs = []
    for point in itertools.product(*(range(target.size(name)) for name in target.names)):
        at = dict(zip(target.names, point, strict=True))
        sender = source.rank_at({name: at[name] for name in source.names})
        pairs.append((sender, target.rank_at(at)))
    return tuple(pairs)
