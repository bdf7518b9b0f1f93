"""A GPU without a GPU: memory that only the library's copies reach, and that other processes open.

Its addresses are none of this process's: code that touches them directly ends with a segmentation
fault. Freed memory is given out again at once, at the same address, as CUDA's allocators do.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Sequence
from typing import Any

from monarch.rdma.gpu import GpuArray, gpu, use_gpu
from monarch.rdma.layout import Run, layout_of

_ARENA_BYTES = 64 * 2**20
_PAGE = 4096
_FAR = 2**56
"""What device addresses have over those at which the memory really lies."""


class _Block:
    """Frees a storage's memory after the watchers of the storage have been told of its end."""

    def __init__(self, world: FakeGpu, memory: mmap.mmap, offset: int, size: int) -> None:
        self._end = functools.partial(world.end, memory, offset, size)

    def __del__(self) -> None:
        self._end()


class FakeStorage:
    """An allocation, of this process or opened from another one; freed with the last reference."""

    def __init__(self, world: FakeGpu, memory: mmap.mmap, offset: int, size: int) -> None:
        self._block = _Block(world, memory, offset, size)
        self._memory = memory
        self.offset = offset
        self.size = size
        self.address = _FAR + _address(memory) + offset

    def view(self) -> memoryview:
        """The bytes, as only a kernel of the GPU would see them."""
        return memoryview(self._memory)[self.offset : self.offset + self.size]


class FakeGpuArray:
    """An array of bytes on the fake GPU, which its owner's kernels read and write by index."""

    def __init__(
        self, data: bytes | FakeStorage, *, step: int = 1, is_readonly: bool = False
    ) -> None:
        if isinstance(data, FakeStorage):
            self.storage = data
        else:
            self.storage = gpu_of_tests().allocate(len(data))
            self.storage.view()[:] = data
        self.step = step
        self.is_readonly = is_readonly

    def strided(self, step: int) -> FakeGpuArray:
        """Every so many bytes of it."""
        return FakeGpuArray(self.storage, step=step)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (len(self),), "strides": (self.step,), "typestr": "|u1", "version": 3,
            "data": (self.storage.address, self.is_readonly),
        }  # fmt: skip

    def __len__(self) -> int:
        return len(range(0, self.storage.size, self.step))

    def __bytes__(self) -> bytes:
        return bytes(self.storage.view()[:: self.step])

    def __setitem__(self, index: slice, data: bytes) -> None:
        self.storage.view()[:: self.step][index] = data


class FakeGpu:
    """One GPU of this process. ``num_opened`` counts storages of others that are mapped."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("fake-gpu", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, _ARENA_BYTES)
        self._arena = mmap.mmap(self._fd, _ARENA_BYTES)
        self._fresh = 0
        self._free: dict[int, list[int]] = {}
        self.num_opened = 0
        self.refuses_to_export = False

    def __del__(self) -> None:
        os.close(self._fd)

    def allocate(self, size: int) -> FakeStorage:
        pages = -(-size // _PAGE) * _PAGE
        free = self._free.get(pages)
        if free:
            return FakeStorage(self, self._arena, free.pop(), size)
        offset = self._fresh
        self._fresh += pages
        if self._fresh > _ARENA_BYTES:
            raise MemoryError("the fake GPU has no more memory")
        return FakeStorage(self, self._arena, offset, size)

    def end(self, memory: mmap.mmap, offset: int, size: int) -> None:
        if memory is self._arena:
            self._free.setdefault(-(-size // _PAGE) * _PAGE, []).append(offset)
        else:
            self.num_opened -= 1

    def is_there(self) -> bool:
        return True

    def describe(self, data: Any) -> GpuArray:
        about = data.__cuda_array_interface__
        address, is_readonly = about["data"]
        layout = layout_of(about["shape"], about["strides"], 1)
        return GpuArray(address, layout, is_readonly, data.storage, "cuda:0")

    def address_of(self, storage: FakeStorage) -> int:
        return storage.address

    def share(self, storage: FakeStorage) -> list[Any]:
        return [os.getpid(), self._fd, storage.offset, storage.size]

    def open(self, handle: Sequence[Any]) -> FakeStorage:
        pid, fd, offset, size = handle
        own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            memory = mmap.mmap(own, _ARENA_BYTES)
        finally:
            os.close(own)
        self.num_opened += 1
        return FakeStorage(self, memory, offset, size)

    def pinned(self, num_bytes: int) -> tuple[object, int]:
        made = bytearray(num_bytes)
        return made, ctypes.addressof(ctypes.c_char.from_buffer(made))

    def copy(self, storage: FakeStorage, runs: Sequence[Run], here: Any, *, is_read: bool) -> None:
        memory, start = storage.view(), 0
        for address, size in runs:
            place = address - storage.address
            if not 0 <= place <= place + size <= storage.size:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            if is_read:
                here[start : start + size] = memory[place : place + size]
            else:
                memory[place : place + size] = here[start : start + size]
            start += size

    def driver(self) -> FakeGpu:
        return self

    def cuMemGetAddressRange_v2(self, base: Any, size: Any, at: Any) -> int:
        begin = _FAR + _address(self._arena)
        if not begin <= at.value < begin + _ARENA_BYTES:
            return 1
        base._obj.value, size._obj.value = begin, _ARENA_BYTES
        return 0

    def cuMemGetHandleForAddressRange(
        self, fd: Any, base: Any, size: Any, kind: int, flags: Any
    ) -> int:
        if self.refuses_to_export or kind != 1 or size.value % _PAGE:
            return 801
        fd._obj.value = os.dup(self._fd)
        return 0


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def gpu_of_tests() -> FakeGpu:
    """The fake of this process, which is asked from now on."""
    found = gpu()
    if not isinstance(found, FakeGpu):
        found = FakeGpu()
        use_gpu(found)
    return found
