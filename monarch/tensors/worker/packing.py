"""Small tensors as bytes, for the controller: torch's own pickles take ten times as long."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

_MOST_BYTES = 8192


class PackedTensor(NamedTuple):
    """The bytes of a tensor; ``dtype`` is the name of its dtype."""

    octets: bytes
    dtype: str
    shape: tuple[int, ...]


def packed(local: torch.Tensor) -> Any:
    """Return a small, plain CPU tensor as a ``PackedTensor``, and other tensors unchanged."""
    is_plain = type(local) is torch.Tensor and local.layout is torch.strided
    if not is_plain or not 0 < local.nbytes <= _MOST_BYTES or not local.is_contiguous():
        return local
    if local.is_quantized or local.is_conj() or local.is_neg():
        return local
    octets = local.reshape(-1).view(torch.uint8).numpy().tobytes()
    return PackedTensor(octets, str(local.dtype), tuple(local.shape))


def unpacked(value: Any) -> Any:
    """Return a writable tensor for a ``PackedTensor``, and other values unchanged.

    Call it while no mesh is active.
    """
    if type(value) is not PackedTensor:
        return value
    dtype = getattr(torch, value.dtype.removeprefix("torch."))
    return torch.frombuffer(bytearray(value.octets), dtype=dtype).view(value.shape)
