"""The description of a tensor: shape, strides, dtype and device. Equal ones are the same object."""

from __future__ import annotations

import weakref
from typing import Any

import msgspec


class Meta(msgspec.Struct, eq=False, weakref=True):
    """Sizes, strides, offset, dtype, device and layout of a tensor."""

    size: Any
    stride: Any
    offset: int
    dtype: Any
    device: Any
    layout: Any
    #: Makes handles with these looks; ``None`` before the first handle.
    maker: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (
            self.size,
            self.stride,
            self.offset,
            self.dtype,
            self.device,
            self.layout,
        )

    @property
    def num_elements(self) -> int:
        """Return how many elements the memory must have, from its beginning to the last element."""
        if not all(self.size):
            return 0
        steps = zip(self.size, self.stride, strict=True)
        return int(self.offset + 1 + sum((size - 1) * step for size, step in steps))

    def __repr__(self) -> str:
        return f"Meta({tuple(self.size)}, {self.dtype})"


_METAS: weakref.WeakValueDictionary[tuple[Any, ...], Meta] = weakref.WeakValueDictionary()


def intern_meta(
    size: Any, stride: Any, *, offset: int, dtype: Any, device: Any, layout: Any
) -> Meta:
    """Return the only ``Meta`` with these values; it lives while a tensor or a template uses it."""
    key = (tuple(size), tuple(stride), offset, dtype, device, layout)
    meta = _METAS.get(key)
    if meta is None:
        meta = Meta(size, stride, offset=offset, dtype=dtype, device=device, layout=layout)
        _METAS[key] = meta
    return meta


def _received(size: Any, stride: Any, *rest: Any) -> Meta:
    offset, dtype, device, layout = rest
    return intern_meta(size, stride, offset=offset, dtype=dtype, device=device, layout=layout)


def meta_of(tensor: Any) -> Meta:
    """Return the ``Meta`` of a strided torch tensor: its sizes, strides, dtype and device."""
    return intern_meta(
        tensor.size(),
        tensor.stride(),
        offset=tensor.storage_offset(),
        dtype=tensor.dtype,
        device=tensor.device,
        layout=tensor.layout,
    )


def storage_key(tensor: Any) -> int:
    """Return a number that torch tensors have in common if they share memory."""
    return int(tensor.untyped_storage()._cdata)
