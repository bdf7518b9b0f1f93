"""The looks of a tensor, without its values. Equal looks are one object."""

from __future__ import annotations

import weakref
from typing import Any


class Meta:
    """Sizes, strides, offset, dtype, device and layout of a tensor."""

    __slots__ = ("__weakref__", "device", "dtype", "layout", "maker", "offset", "size", "stride")

    def __init__(
        self, size: Any, stride: Any, *, offset: int, dtype: Any, device: Any, layout: Any
    ) -> None:
        self.size = size
        self.stride = stride
        self.offset = offset
        self.dtype = dtype
        self.device = device
        self.layout = layout
        self.maker: Any = None  # Makes handles that look so, once there was one.

    def __repr__(self) -> str:
        return f"Meta({tuple(self.size)}, {self.dtype})"


_KNOWN: weakref.WeakValueDictionary[tuple[Any, ...], Meta] = weakref.WeakValueDictionary()


def intern_meta(
    size: Any, stride: Any, *, offset: int, dtype: Any, device: Any, layout: Any
) -> Meta:
    """Return the only ``Meta`` with these values; it lives while a tensor or a template uses it."""
    key = (tuple(size), tuple(stride), offset, dtype, device, layout)
    found = _KNOWN.get(key)
    if found is None:
        found = Meta(size, stride, offset=offset, dtype=dtype, device=device, layout=layout)
        _KNOWN[key] = found
    return found


def meta_of(tensor: Any) -> Meta:
    """Return the sizes, strides and other properties of a strided torch tensor, as a `Meta`."""
    return intern_meta(
        tensor.size(),
        tensor.stride(),
        offset=tensor.storage_offset(),
        dtype=tensor.dtype,
        device=tensor.device,
        layout=tensor.layout,
    )
