"""A small interface to CUDA, with torch as its implementation.

A *storage* is an allocation: this process's own, an opened one of another process, or memory of the
host. Copies are queued on streams of their own. A *mark* is a place in a stream's order; waiting
for it waits for all earlier work. Without a GPU ``monarch/testing/fake_gpu.py`` implements it.
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
    """An array in GPU memory: ``storage`` keeps it, ``device`` is torch's name of the GPU."""

    address: int
    layout: Layout
    is_readonly: bool
    storage: Any
    device: str


class GpuMark(Protocol):
    """A place in the order of a stream's work, for which callers and other streams can wait."""

    def wait(self) -> None:
        """Wait until all work before the mark is done. Raises ``RuntimeError`` if the GPU fails."""


class GpuStream(Protocol):
    """A queue of copies, which runs beside the program's own work on the GPU."""

    def follow(self, mark: GpuMark) -> None:
        """Make later work of this stream wait for the mark, of any stream or process."""

    def copy(self, source: StoragePlace, target: StoragePlace) -> None:
        """Queue a copy between places of equal size, in the order of their elements.

        Host memory must be pinned.
        """

    def mark(self) -> GpuMark: ...


class GpuFence(Protocol):
    """A mark that other processes of the host can wait for; ``set`` moves it to a later place."""

    def handle(self) -> bytes: ...

    def set(self) -> None:
        """Move the fence behind all work that the calling thread has queued on the device so far.

        Work that the fence was behind before this call remains before it.
        """


class GpuLibrary(Protocol):
    """The functions of CUDA that this process uses.

    Those that use a device raise ``RuntimeError`` if CUDA fails. ``fences`` has, by device, the
    fences that other processes follow.
    """

    fences: dict[int, GpuFence]

    def is_there(self) -> bool:
        """Whether this process has a GPU."""

    def devices(self) -> Sequence[str]:
        """Return names of the visible GPUs by index, the same in all processes of this host."""

    def describe(self, data: Any) -> GpuArray:
        """Describe a GPU array that is no tensor. Raises ``TypeError`` if that is impossible."""

    def tensor_at(self, tensor: Any) -> tuple[int, Any, str]:
        """Return the address of a tensor's first element, its storage, and torch's name of the
        device."""

    def address_of(self, storage: Any) -> int:
        """Return the address at which the storage begins, in this process."""

    def device_of(self, storage: Any) -> int:
        """Return the index of the storage's device; -1 for memory of this host."""

    def share(self, storage: Any) -> list[Any]:
        """Return a handle by which one process of this host can open the storage, once.

        It waits for the device's queued work.
        """

    def open(self, handle: Sequence[Any], device: int) -> Any:
        """Map another process's storage on the device that has the index ``device`` here.

        It stays mapped until the last reference to the result is gone.
        """

    def fence(self, device: int) -> GpuFence: ...

    def open_fence(self, handle: bytes, device: int) -> GpuMark:
        """Open another process's fence, so that streams here can follow it."""

    def stream(self, device: int) -> GpuStream:
        """Return the device's stream on which copies are queued."""

    def mark(self, device: int) -> GpuMark:
        """Return a mark behind all work that the calling thread has queued on the device."""

    def finish(self, device: int) -> None:
        """Wait for all queued work of the device."""

    def free_bytes(self, device: int) -> int: ...

    def allocate(self, num_bytes: int, device: int) -> Any:
        """Allocate an array of bytes on the device, with a storage of its own, as ``RDMABuffer``
        needs it."""

    def pinned(self, num_bytes: int) -> tuple[Any, int]:
        """Return a storage of pinned host memory, to which a GPU can copy, and its address."""

    def pinned_at(self, address: int, num_bytes: int) -> Any:
        """Return a storage of existing host memory if it is pinned, else ``None``."""

    def pin(self, address: int, num_bytes: int) -> bool:
        """Pin existing host memory until ``unpin``; return whether that worked."""

    def unpin(self, address: int) -> None: ...

    def driver(self) -> Any:
        """Load the CUDA driver's own library, for the two functions that export memory.

        Raises ``OSError`` if there is none.
        """


class TorchGpu:
    """The functions of CUDA, called through torch."""

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
        event = torch.cuda.Event.from_ipc_handle(torch.device("cuda", device), handle)
        return _TorchMark(event)

    def stream(self, device: int) -> GpuStream:
        if device not in self._streams:
            self._streams[device] = _TorchStream(device)
        return self._streams[device]

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
        # torch keeps pinned memory, and reuses it when copies from and to it are done.
        torch = _torch()
        tensor = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
        return tensor.untyped_storage(), tensor.data_ptr()

    def pinned_at(self, address: int, num_bytes: int) -> Any:
        torch = _torch()
        memory = (ctypes.c_char * num_bytes).from_address(address)
        tensor = torch.frombuffer(memory, dtype=torch.uint8)
        if not torch.cuda.is_available() or not (tensor.is_pinned() and tensor[-1:].is_pinned()):
            return None
        return tensor.untyped_storage()

    def pin(self, address: int, num_bytes: int) -> bool:
        cudart = _torch().cuda.cudart()
        return not int(cudart.cudaHostRegister(address, num_bytes, _PORTABLE))

    def unpin(self, address: int) -> None:
        # Fails in a forked child, and at the end of the process: nothing is pinned there.
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
    """A fence that is recorded on a stream of its own.

    So the program's streams do not wait for each other because of the fence.
    """

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
        cuda = _torch().cuda
        if cuda.is_current_stream_capturing():
            return  # A graph's work only runs when it is replayed; the fence would join the graph.
        self._stream.wait_stream(cuda.current_stream(self._device))
        self._event.record(self._stream)


def copy_places(source: StoragePlace, target: StoragePlace, stream: Any = None) -> None:
    """Copy with torch, on ``stream``; without a stream both places must be host memory."""
    torch = _torch()
    unit = math.gcd(8, _grain(source), _grain(target))
    with torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext():
        from_view, to_view = _view(source, unit), _view(target, unit)
        if from_view.shape != to_view.shape:
            if to_view.is_contiguous():
                to_view = to_view.view(from_view.shape)
            else:
                from_view = from_view.contiguous().view(to_view.shape)
        to_view.copy_(from_view, non_blocking=True)


def _grain(place: StoragePlace) -> int:
    """Return the largest element size, in bytes, with which a tensor can view the place."""
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
    """Return the GPU library of this process."""
    return _library


def use_gpu(library: GpuLibrary) -> GpuLibrary:
    """Replace the GPU library of this process, for tests; return the previous one."""
    global _library
    previous, _library = _library, library
    return previous
