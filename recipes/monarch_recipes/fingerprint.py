"""Computes fingerprints of weights and optimizer state, to check whether ranks are equal.

A fingerprint has one number for each tensor: the sum of its elements' bits, each multiplied by the
weight of its position, modulo 2**64. Weights are odd, so that one flipped bit always changes the
number; they are large and irregular, so that swapped elements change it and errors do not cancel
out. It is computed in pieces on the tensor's device, without a copy. NaNs are bits like all others.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

PIECE = 1 << 18  # elements that have a number of their own
_PIECES_AT_ONCE = 32  # of a large tensor, on a GPU: 64 MB
_ONES = (1 << 64) - 1
_MIX = 0x9E3779B97F4A7C15  # odd: the multiplier of splitmix64's sequence

Sums = dict[str, int]
"""A number for each tensor, by its name."""


@dataclass(frozen=True)
class RankDifference:
    """``rank`` differs from the rank ``right`` in the tensors ``names``.

    ``right`` is the first rank of the largest group of equal ranks.
    """

    rank: int
    right: int
    names: tuple[str, ...]

    @property
    def what(self) -> str:
        """The names of the tensors that differ, as a short text."""
        return self.names[0] + (f" and {len(self.names) - 1} more" if len(self.names) > 1 else "")

    def __str__(self) -> str:
        return f"rank {self.rank} differs from rank {self.right} in {self.what}"


def sums_of(state: Mapping[str, Any]) -> Sums:
    """Return a number for each tensor or plain value, by name: equal values have equal numbers.

    Waits once for each device.
    """
    tensors: dict[str, torch.Tensor] = {}
    sums: Sums = {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            tensors[name] = value.detach()
        else:
            sums[name] = _of_text(repr(value))
    by_kind: dict[tuple[torch.device, torch.dtype], list[tuple[str, int, torch.Tensor]]] = {}
    for name, tensor in tensors.items():
        sums[name] = _of_kind(tensor.dtype, tensor.shape)
        number = 0
        for block in _blocks(tensor):
            kind = by_kind.setdefault((block.device, block.dtype), [])
            kind.append((name, number, block))
            number += _num_pieces(block)
    for (device, _), blocks in by_kind.items():
        batches = _batches([block for _, _, block in blocks])
        values = torch.cat([_sums_of_batch(batch, device) for batch in batches]).tolist()
        numbers = (
            (name, first + piece)
            for name, first, block in blocks
            for piece in range(_num_pieces(block))
        )
        for (name, number), value in zip(numbers, values, strict=True):
            # Each piece has a factor of its own, which is odd as well.
            sums[name] = (sums[name] + value * pow(_MIX, number, 1 << 64)) & _ONES
    return sums


def digest_of(sums: Mapping[str, int]) -> str:
    """Return a text of 16 hexadecimal digits for all numbers; their order does not matter."""
    text = "\n".join(f"{name} {value}" for name, value in sorted(sums.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(by_rank: Mapping[int, Mapping[str, int]]) -> list[RankDifference]:
    """Compare ranks that should be equal, and return each rank that differs from the majority."""
    digests = {rank: digest_of(sums) for rank, sums in sorted(by_rank.items())}
    counts = Counter(digests.values())
    if len(counts) <= 1:
        return []
    right = max(digests, key=lambda rank: counts[digests[rank]])
    expected = by_rank[right]
    differing = []
    for rank in digests:
        sums = by_rank[rank]
        names = [name for name in expected if sums.get(name) != expected[name]]
        names += [name for name in sums if name not in expected]
        if names:
            differing.append(RankDifference(rank, right, tuple(names)))
    return differing


def state_of(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer] = ()) -> dict[str, Any]:
    """Return the tensors and values that data-parallel ranks should have equal, by name.

    These are the parameters, the floating-point buffers that a checkpoint has, and the optimizers'
    state of each parameter. Other buffers are left out: they may count the samples of a rank.
    """
    parameters = dict(model.named_parameters())
    state: dict[str, Any] = dict(parameters)
    saved = model.state_dict(keep_vars=True)
    for name, buffer in model.named_buffers():
        if name in saved and buffer.is_floating_point():
            state[name] = buffer
    names = {parameter: name for name, parameter in parameters.items()}
    for number, optimizer in enumerate(optimizers):
        state |= state_of_optimizer(optimizer, names, f"optimizer {number}")
    return state


def state_of_optimizer(
    optimizer: torch.optim.Optimizer,
    names: Mapping[torch.Tensor, str],
    title: str = "the optimizer",
    *,
    only_named: bool = False,
) -> dict[str, Any]:
    """Return the optimizer's state, under names such as "exp_avg of layer.weight".

    ``names`` has the names of parameters. Other parameters are named by their number, or left out
    with ``only_named``.
    """
    state: dict[str, Any] = {}
    number = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter_name = names.get(parameter) or f"parameter {number} of {title}"
            number += 1
            if parameter not in names:
                if only_named:
                    continue
                state[parameter_name] = parameter  # A parameter of a loss, for example.
            for key, value in optimizer.state.get(parameter, {}).items():
                state |= _plain_values(f"{key} of {parameter_name}", value)
    return state


def _plain_values(name: str, value: Any) -> dict[str, Any]:
    """Return the tensors and plain values inside ``value``, by name; other objects are left out."""
    if isinstance(value, torch.Tensor | bool | int | float | complex | str | bytes | None):
        return {name: value}
    if isinstance(value, Mapping):
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        return {}
    plain: dict[str, Any] = {}
    for key, inner in items:
        plain |= _plain_values(f"{key} of {name}", inner)
    return plain


def _blocks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensor's bits as integer tensors: whole pieces, shape (pieces, `PIECE`), then the
    rest, shape (elements,).
    """
    if tensor.is_meta or tensor.numel() == 0:
        return
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _blocks(getattr(tensor, name))
        return
    if tensor.layout != torch.strided:
        if tensor.layout == torch.sparse_coo:
            tensor = tensor.coalesce()
            yield from _blocks(tensor.indices())
            yield from _blocks(tensor.values())
        return
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    tensor = tensor.resolve_neg()
    flat = tensor.contiguous().view(-1)
    if flat.nbytes % 8 == 0:  # Eight bytes at a time need no conversion.
        is_aligned = flat.storage_offset() * flat.element_size() % 8 == 0
        bits = (flat if is_aligned else flat.clone()).view(torch.int64)
    else:
        width = {1: torch.uint8, 2: torch.int16}.get(flat.element_size(), torch.int32)
        bits = flat.view(width)
    size = bits.numel() // PIECE * PIECE
    if size:
        yield from bits[:size].view(-1, PIECE).split(_PIECES_AT_ONCE)
    if size < bits.numel():
        yield bits[size:]


def _num_pieces(block: torch.Tensor) -> int:
    return block.shape[0] if block.dim() == 2 else 1


def _batches(blocks: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield the blocks in batches, each of which is summed by one call.

    On a CPU a batch is one block. On a GPU small blocks are joined, up to `PIECE` elements, because
    a call there costs the same for any small size.
    """
    batch: list[torch.Tensor] = []
    size = 0
    for block in blocks:
        if batch and (size + block.numel() > PIECE or block.device.type == "cpu"):
            yield batch
            batch, size = [], 0
        batch.append(block)
        size += block.numel()
    if batch:
        yield batch


def _sums_of_batch(batch: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the weighted sum of each piece, shape (pieces,), int64, modulo 2**64.

    A batch is one block of `_blocks`, or several blocks that each have less than one whole piece.
    """
    weights = _weights(device)
    if len(batch) == 1:
        rows = batch[0] if batch[0].dim() == 2 else batch[0][None]
        weights = weights[: rows.shape[1]]
        if device.type == "cpu":
            return torch.stack([row.to(torch.int64).dot(weights) for row in rows])
        # A GPU has no product of integer vectors.
        return (rows.to(torch.int64) * weights).sum(1)
    sizes = [rest.numel() for rest in batch]
    values = torch.cat(list(batch)).to(torch.int64)
    values *= torch.cat([weights[:size] for size in sizes])
    running = values.cumsum(0)
    ends = torch.tensor(sizes, device=device).cumsum(0) - 1
    at_ends = running[ends]
    return torch.diff(at_ends, prepend=at_ends.new_zeros(1))


@functools.lru_cache(maxsize=8)
def _weights(device: torch.device) -> torch.Tensor:
    """Return the weights of a piece's positions: splitmix64's numbers, made odd.

    They are the same on every machine.
    """
    value = torch.arange(1, PIECE + 1, dtype=torch.int64) * _signed(_MIX)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        # Clears the copies of the sign bit that a shift to the right brings in.
        value ^= (value >> shift) & ((1 << (64 - shift)) - 1)
        value *= _signed(factor)
    return (value | 1).to(device)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


@functools.lru_cache(maxsize=4096)
def _of_kind(dtype: torch.dtype, shape: torch.Size) -> int:
    return _of_text(f"{dtype} {tuple(shape)}")


def _of_text(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
