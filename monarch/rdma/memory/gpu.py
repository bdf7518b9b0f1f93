"""A small interface to CUDA, and torch, which serves it.

A *storage* is an allocation: this process's own, one of another process that was opened, or memory
of the host. Copies are queued on a stream of their own and waited for by a *mark*, a place in a
stream's order. Without a GPU ``monarch/testing/fake_gpu.py`` serves it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from monarch.rdma.memory.layout import Layout, StoragePlace


class GpuArray(NamedTuple):
    """Where an array of a GPU lies; ``storage`` holds it, ``device`` is torch's name."""

    address: int
    layout: Layout
    is_readonly: bool
    storage: Any
    device: str


class GpuMark(Protocol):
    """A place in a stream's order."""

    def wait(self) -> None:
        """Return when all that is before it is done. Raises ``RuntimeError`` where the GPU cannot
        do it."""
        ...


class GpuStream(Protocol):
    """Copies, in their order, beside what the program has the GPU do."""

    def follow(self, mark: GpuMark) -> None:
        """What is queued from now on comes after the mark, of whatever stream or process."""
        ...

    def copy(self, source: StoragePlace, target: StoragePlace) -> None:
        """Queue a copy of as many bytes, in the order of their elements. Memory of the host must
        be pinned."""
        ...

    def mark(self) -> GpuMark: ...


class GpuFence(Protocol):
    """A mark of a process that others of its host can follow: always the last one that was set."""

    def handle(self) -> bytes: ...

    def set(self) -> None:
        """Put it behind all that the calling thread has the device do until now, and behind where
        it was."""
        ...


class GpuLibrary(Protocol):
    """The operations that this process asks of CUDA. Those on devices raise ``RuntimeError``.

    ``fences`` are those that other processes follow, by device.
    """

    fences: dict[int, GpuFence]

    def is_there(self) -> bool:
        """Whether this process has a GPU."""
        ...

    def devices(self) -> Sequence[str]:
        """The names, good for all processes of this host, of the GPUs that this one sees, by its
        index."""
        ...

    def describe(self, data: Any) -> GpuArray:
        """An array of a GPU that is no tensor. Raises ``TypeError`` where it cannot tell."""
        ...

    def tensor_at(self, tensor: Any) -> tuple[int, Any, str]:
        """The address of its first element, its storage, and torch's name of the device."""
        ...

    def address_of(self, storage: Any) -> int:
        """Where the storage begins, as this process sees it."""
        ...

    def device_of(self, storage: Any) -> int:
        """The index of its device; -1 for memory of this host."""
        ...

    def share(self, storage: Any) -> list[Any]:
        """A handle by which one process of this host opens the storage, once. What the device has
        been given to do is done."""
        ...

    def open(self, handle: Sequence[Any], device: int) -> Any:
        """The storage of another process, on the device that has this index here: mapped until the
        last reference to what this gives is gone."""
        ...

    def fence(self, device: int) -> GpuFence: ...

    def open_fence(self, handle: bytes, device: int) -> GpuMark:
        """The fence of another process, to be followed."""
        ...

    def stream(self, device: int) -> GpuStream:
        """The stream of a device on which copies are queued."""
        ...

    def mark(self, device: int) -> GpuMark:
        """Behind all that the calling thread has the device do until now."""
        ...

    def finish(self, device: int) -> None:
        """Wait for all that the device was given to do."""
        ...

    def free_bytes(self, device: int) -> int: ...

    def allocate(self, num_bytes: int, device: int) -> Any:
        """An array of bytes on the device, with a storage of its own: a ``RDMABuffer`` is made of
        it."""
        ...

    def pinned(self, num_bytes: int) -> tuple[Any, int]:
        """A storage of this host's memory that a GPU can copy to, and its address."""
        ...

    def pinned_at(self, address: int, num_bytes: int) -> Any:
        """A storage of memory of this host that is there and pinned, ``None`` where it is not."""
        ...

    def pin(self, address: int, num_bytes: int) -> bool:
        """Pin memory that is there; whether it is, until ``unpin``."""
        ...

    def unpin(self, address: int) -> None: ...

    def driver(self) -> Any:
        """The driver's own library, of which the two calls are used that export memory. Raises
        ``OSError``."""
        ...


class TorchGpu:
    """CUDA, by torch."""

    def __init__(self) -> None:
        self.fences: dict[int, GpuFence] = {}
        self._streams: dict[int, _TorchStream] = {}

    def is_there(self) -> bool:
        torch = sys.modules.get("torch")
        return torch is not None and bool(torch.cuda.is_available())

    def devices(self) -> Sequence[str]:
        return _uuids()

    def describe(self, data: Any) -> GpuArray:
        raise TypeError(
            f"memory of a GPU is needed as a tensor here, not as {type(data).__name__}: "
            "torch.as_tensor(array, device='cuda') copies nothing"
        )

    def tensor_at(self, tensor: Any) -> tuple[int, Any, str]:
        return tensor.data_ptr(), tensor.untyped_storage(), str(tensor.device)

    def address_of(self, storage: Any) -> int:
        return int(storage.data_ptr())

    def device_of(self, storage: Any) -> int:
        device = storage.device
        return -1 if device.type == "cpu" else int(device.index or 0)

    def share(self, storage: Any) -> list[Any]:
        # The handle is of the whole segment of torch's allocator, with an offset; of an expandable
        # segment it names descriptors of this process, which the other one takes over.
        _torch().cuda.synchronize(storage.device)
        return list(storage._share_cuda_())

    def open(self, handle: Sequence[Any], device: int) -> Any:
        return _torch().UntypedStorage._new_shared_cuda(device, *handle[1:])

    def fence(self, device: int) -> GpuFence:
        return _TorchFence(device)

    def open_fence(self, handle: bytes, device: int) -> GpuMark:
        torch = _torch()
        where = torch.device("cuda", device)
        return _TorchMark(torch.cuda.Event.from_ipc_handle(where, handle))

    def stream(self, device: int) -> GpuStream:
        found = self._streams.get(device)
        if found is None:
            found = self._streams[device] = _TorchStream(device)
        return found

    def mark(self, device: int) -> GpuMark:
        return _TorchMark(_torch().cuda.current_stream(device).record_event())

    def finish(self, device: int) -> None:
        _torch().cuda.synchronize(device)

    def free_bytes(self, device: int) -> int:
        return int(_torch().cuda.mem_get_info(device)[0])

    def allocate(self, num_bytes: int, device: int) -> Any:
        torch = _torch()
        return torch.empty(num_bytes, dtype=torch.uint8, device=torch.device("cuda", device))

    def pinned(self, num_bytes: int) -> tuple[Any, int]:
        # torch keeps what was pinned, and gives it out again when copies from and to it are done.
        torch = _torch()
        made = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
        return made.untyped_storage(), made.data_ptr()

    def pinned_at(self, address: int, num_bytes: int) -> Any:
        torch = _torch()
        memory = (ctypes.c_char * num_bytes).from_address(address)
        made = torch.frombuffer(memory, dtype=torch.uint8)
        if not torch.cuda.is_available() or not (made.is_pinned() and made[-1:].is_pinned()):
            return None
        return made.untyped_storage()

    def pin(self, address: int, num_bytes: int) -> bool:
        cudart = _torch().cuda.cudart()
        return not int(cudart.cudaHostRegister(address, num_bytes, _PORTABLE))

    def unpin(self, address: int) -> None:
        # A child that was forked, or a process at its end, has nothing to give back.
        with contextlib.suppress(RuntimeError, KeyError, AttributeError):
            _torch().cuda.cudart().cudaHostUnregister(address)

    def driver(self) -> Any:
        return ctypes.CDLL("libcuda.so.1")


_PORTABLE = 1  # For all contexts of this process.


def _torch() -> Any:
    return sys.modules["torch"]


@functools.lru_cache(maxsize=1)
def _uuids() -> tuple[str, ...]:
    cuda = _torch().cuda
    return tuple(str(cuda.get_device_properties(at).uuid) for at in range(cuda.device_count()))


class _TorchMark:
    def __init__(self, event: Any) -> None:
        self.event = event

    def wait(self) -> None:
        self.event.synchronize()


class _TorchStream:
    def __init__(self, device: int) -> None:
        self._stream = _torch().cuda.Stream(device)

    def follow(self, mark: GpuMark) -> None:
        assert isinstance(mark, _TorchMark)
        self._stream.wait_event(mark.event)

    def copy(self, source: StoragePlace, target: StoragePlace) -> None:
        copy_places(source, target, self._stream)

    def mark(self) -> GpuMark:
        return _TorchMark(self._stream.record_event())


class _TorchFence:
    """On a stream of its own, so that streams of the program do not wait for each other."""

    def __init__(self, device: int) -> None:
        torch = _torch()
        self._device = device
        self._stream = torch.cuda.Stream(device)
        with torch.cuda.device(device):
            self._event = torch.cuda.Event(interprocess=True)
        self.set()

    def handle(self) -> bytes:
        return bytes(self._event.ipc_handle())

    def set(self) -> None:
        self._stream.wait_stream(_torch().cuda.current_stream(self._device))
        self._event.record(self._stream)


def copy_places(source: StoragePlace, target: StoragePlace, stream: Any = None) -> None:
    """Copy by torch, on ``stream``; of memory of this host alone, without one."""
    torch = _torch()
    unit = math.gcd(8, _grain(source), _grain(target))
    with torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext():
        given, wanted = _view(source, unit), _view(target, unit)
        if given.shape != wanted.shape:
            if wanted.is_contiguous():
                wanted = wanted.view(given.shape)
            else:
                given = given.contiguous().view(wanted.shape)
        wanted.copy_(given, non_blocking=True)


def _grain(place: StoragePlace) -> int:
    """How many bytes may be one element of a tensor that shows the place."""
    start = place.address - place.storage.data_ptr()
    return math.gcd(start, place.layout.run, *place.layout.strides)


def _view(place: StoragePlace, unit: int) -> Any:
    torch = _torch()
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[unit]
    run, sizes, strides = place.layout
    start = (place.address - place.storage.data_ptr()) // unit
    shape, steps = (*sizes, run // unit), (*(stride // unit for stride in strides), 1)
    empty = torch.empty(0, dtype=kind, device=place.storage.device)
    return empty.set_(place.storage, start, shape, steps)


_library: GpuLibrary = TorchGpu()


def gpu() -> GpuLibrary:
    """The library of this process."""
    return _library


def use_gpu(library: GpuLibrary) -> GpuLibrary:
    """Ask this one from now on: for tests. Gives the one before."""
    global _library
    before, _library = _library, library
    return before
