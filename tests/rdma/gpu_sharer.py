"""Memory of a GPU, fake or real, by its library alone; and a process that shares some."""

from __future__ import annotations

import ctypes
from typing import Any

from monarch.actor import Actor, endpoint
from monarch.rdma.memory.gpu import gpu
from monarch.rdma.memory.layout import Layout, StoragePlace
from monarch.rdma.memory.memory import memory_of
from monarch.testing.fake_gpu import gpu_of_tests


def use(kind: str) -> None:
    if kind == "fake":
        gpu_of_tests()
    else:
        import torch

        torch.cuda.init()


def put(place: StoragePlace, data: bytes) -> None:
    """Write the place's bytes, by pinned memory."""
    storage, address = gpu().pinned(len(data))
    ctypes.memmove(address, data, len(data))
    stream = gpu().stream(gpu().device_of(place.storage))
    stream.copy(StoragePlace(storage, address, Layout(len(data))), place)
    stream.mark().wait()


def get(place: StoragePlace) -> bytes:
    size = place.layout.nbytes
    storage, address = gpu().pinned(size)
    stream = gpu().stream(gpu().device_of(place.storage))
    stream.copy(place, StoragePlace(storage, address, Layout(size)))
    stream.mark().wait()
    return ctypes.string_at(address, size)


def place_of(array: Any) -> StoragePlace:
    memory = memory_of(array)
    return StoragePlace(memory.keep, memory.address, memory.layout)


class Sharer(Actor):
    def __init__(self, kind: str) -> None:
        use(kind)

    @endpoint
    def share(self, data: bytes) -> tuple[list[Any], int, str, bytes]:
        """The handle, the offset of the bytes in what it opens, the device, and the fence."""
        self.array = gpu().allocate(len(data), 0)
        put(place_of(self.array), data)
        storage = place_of(self.array).storage
        self.fence = gpu().fence(0)
        offset = place_of(self.array).address - gpu().address_of(storage)
        return gpu().share(storage), offset, gpu().devices()[0], self.fence.handle()

    @endpoint
    def write(self, data: bytes) -> None:
        put(place_of(self.array), data)
        self.fence.set()

    @endpoint
    def content(self) -> bytes:
        return get(place_of(self.array))
