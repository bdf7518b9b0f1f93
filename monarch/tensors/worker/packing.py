"""Small tensors on their way to the controller: as bytes, of which torch's own pickles take ten
times as long to make and to read."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

_MOST_BYTES = 8192


class PackedTensor(NamedTuple):
    """``dtype`` by its name."""

    octets: bytes
    dtype: str
    shape: tuple[int, ...]


def packed(local: torch.Tensor) -> Any:
    """A tensor of this CPU, packed where it is small and plain."""
    is_plain = type(local) is torch.Tensor and local.layout is torch.strided
    if not is_plain or not 0 < local.nbytes <= _MOST_BYTES or not local.is_contiguous():
        return local
    if local.is_quantized or local.is_conj() or local.is_neg():
        return local
    octets = local.reshape(-1).view(torch.uint8).numpy().tobytes()
    return PackedTensor(octets, str(local.dtype), tuple(local.shape))


def unpacked(value: Any) -> Any:
    """The tensor of a packed value, if it was packed; to be written to, as any tensor. With no mesh
    active."""
    if type(value) is not PackedTensor:
        return value
    dtype = getattr(torch, value.dtype.removeprefix("torch."))
    return torch.frombuffer(bytearray(value.octets), dtype=dtype).view(value.shape)
