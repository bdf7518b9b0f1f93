"""A small interface to CUDA, and torch, which serves it.

torch's copies do the work, on the current stream, and are waited for. Without a GPU
``monarch/testing/fake_gpu.py`` does it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from monarch.rdma.layout import Layout, Run


class GpuArray(NamedTuple):
    """Where an array of a GPU lies; ``storage`` holds it, ``device`` is torch's name."""

    address: int
    layout: Layout
    is_readonly: bool
    storage: Any
    device: str


class GpuLibrary(Protocol):
    """The operations that this process asks of CUDA. A *storage* is an allocation, its own or an
    opened one."""

    def is_there(self) -> bool:
        """Whether this process has a GPU."""
        ...

    def describe(self, data: Any) -> GpuArray:
        """An array of a GPU that is no tensor. Raises ``TypeError`` where it cannot tell."""
        ...

    def address_of(self, storage: Any) -> int:
        """Where the storage begins, as this process sees it."""
        ...

    def share(self, storage: Any) -> list[Any]:
        """A handle by which processes of this host open the storage."""
        ...

    def open(self, handle: Sequence[Any]) -> Any:
        """The storage of another process: mapped until the last reference to what this gives is
        gone."""
        ...

    def pinned(self, num_bytes: int) -> tuple[object, int]:
        """Memory of this host that a GPU can copy to, and its address."""
        ...

    def copy(self, storage: Any, runs: Sequence[Run], here: object, *, is_read: bool) -> None:
        """Copy runs of the storage to pinned memory, one behind the other, or the other way; it is
        done when this returns."""
        ...

    def driver(self) -> Any:
        """The driver's own library, of which the two calls are used that export memory. Raises
        ``OSError``."""
        ...


class TorchGpu:
    """CUDA, by torch."""

    def is_there(self) -> bool:
        torch = sys.modules.get("torch")
        return torch is not None and bool(torch.cuda.is_available())

    def describe(self, data: Any) -> GpuArray:
        raise TypeError(
            f"memory of a GPU is needed as a tensor here, not as {type(data).__name__}: "
            "torch.as_tensor(array, device='cuda') copies nothing"
        )

    def address_of(self, storage: Any) -> int:
        return int(storage.data_ptr())

    def share(self, storage: Any) -> list[Any]:
        return list(storage._share_cuda_())

    def open(self, handle: Sequence[Any]) -> Any:
        return sys.modules["torch"].UntypedStorage._new_shared_cuda(*handle)

    def pinned(self, num_bytes: int) -> tuple[object, int]:
        torch = sys.modules["torch"]
        made = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
        return made, made.data_ptr()

    def copy(self, storage: Any, runs: Sequence[Run], here: Any, *, is_read: bool) -> None:
        torch = sys.modules["torch"]
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        base = storage.data_ptr()
        pieces = here.split([size for _, size in runs])
        for (address, size), piece in zip(runs, pieces, strict=True):
            part = whole[address - base : address - base + size]
            source, target = (part, piece) if is_read else (piece, part)
            target.copy_(source, non_blocking=True)
        if storage.device.type == "cuda":
            torch.cuda.current_stream(storage.device).synchronize()

    def driver(self) -> Any:
        return ctypes.CDLL("libcuda.so.1")


_library: GpuLibrary = TorchGpu()


def gpu() -> GpuLibrary:
    """The library of this process."""
    return _library


def use_gpu(library: GpuLibrary) -> GpuLibrary:
    """Ask this one from now on: for tests. Gives the one before."""
    global _library
    before, _library = _library, library
    return before
