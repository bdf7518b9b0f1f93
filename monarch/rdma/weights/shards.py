"""The tensors of a state dict: their shards for the plan of a fetch, and their places in a slab."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monarch.rdma.memory.layout import Run, layout_of
from monarch.rdma.weights.reshard import Coordinates, ShardPiece, Split, local_shape, pieces_of

_ALIGNMENT = 64


@dataclass(frozen=True)
class HeldTensor:
    """The part of a tensor that one rank has, and its place in a half of its slab.

    ``dtype`` is torch's name.
    """

    dtype: str
    item_bytes: int
    shape: Coordinates
    local: Coordinates
    pieces: tuple[ShardPiece, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.local) * self.item_bytes

    def runs(self, start: Coordinates, sizes: Coordinates) -> Iterator[Run]:
        """Yield the runs of a box of the local tensor, as offsets in the half."""
        strides = _strides(self.local, self.item_bytes)
        first = self.offset + sum(a * stride for a, stride in zip(start, strides, strict=True))
        for offset, length in layout_of(sizes, strides, self.item_bytes).runs():
            yield first + offset, length


def _strides(shape: Sequence[int], item_bytes: int) -> Coordinates:
    strides, step = [], item_bytes
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def tensors_of(state: Any) -> dict[str, Any]:
    """Return the tensors of a module or a mapping, by key. Raises ``TypeError`` for other
    values."""
    if not isinstance(state, Mapping):
        state = state.state_dict()
    torch = sys.modules["torch"]
    for key, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"{key!r} is no tensor but a {type(value).__name__}: leave it out, or make it one"
            )
    return dict(state)


def local_of(tensor: Any) -> Any:
    """Return the part of a tensor that this rank has, detached from autograd."""
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "device_mesh") else tensor


def splits_of(tensor: Any) -> tuple[Split, ...]:
    """Return how a DTensor is sharded, for this rank; an ordinary tensor has no splits."""
    if not hasattr(tensor, "device_mesh"):
        return ()
    mesh = tensor.device_mesh
    coordinates = mesh.get_coordinate()
    splits = []
    for dim, placement in enumerate(tensor.placements):
        kind = type(placement).__name__
        if placement.is_partial():
            raise ValueError("a tensor of partial sums has no value yet: reduce it first")
        if kind == "_StridedShard" or placement.is_shard():
            is_late = kind == "_StridedShard"
            splits.append(Split(placement.dim, mesh.size(dim), coordinates[dim], is_late))
    return tuple(splits)


def pieces_wanted(tensor: Any) -> tuple[ShardPiece, ...]:
    """Return the pieces that fill this rank's part of a tensor."""
    splits = splits_of(tensor)
    _check(tensor, splits)
    return pieces_of(tensor.shape, splits)


def _check(tensor: Any, splits: Sequence[Split]) -> None:
    shape, expected = tuple(local_of(tensor).shape), local_shape(tensor.shape, splits)
    if shape != expected:
        raise ValueError(
            f"this rank holds {shape} of a tensor of {tuple(tensor.shape)}, and by its placements "
            f"it would hold {expected}: make the DTensor with the placements that it has"
        )


def describe(tensors: Mapping[str, Any]) -> tuple[dict[str, HeldTensor], int]:
    """Return the place of each tensor in a half, and how many bytes a half has."""
    descriptions, offset = {}, 0
    for key, tensor in tensors.items():
        splits = splits_of(tensor)
        _check(tensor, splits)
        shape = tuple(tensor.shape)
        description = descriptions[key] = HeldTensor(
            dtype=str(tensor.dtype).removeprefix("torch."),
            item_bytes=tensor.element_size(),
            shape=shape,
            local=local_shape(shape, splits),
            pieces=pieces_of(shape, splits),
            offset=offset,
        )
        offset += description.nbytes + -description.nbytes % _ALIGNMENT
    return descriptions, offset


def view_of(memory: memoryview, offset: int, dtype: str, shape: Sequence[int]) -> Any:
    """Return a tensor that views the bytes at ``offset``, without a copy."""
    torch = sys.modules["torch"]
    count = math.prod(shape)
    kind = getattr(torch, dtype)
    if not count:
        return torch.empty(tuple(shape), dtype=kind)
    return torch.frombuffer(memory, dtype=kind, count=count, offset=offset).view(tuple(shape))


def box(start: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(a, a + size) for a, size in zip(start, sizes, strict=True))
