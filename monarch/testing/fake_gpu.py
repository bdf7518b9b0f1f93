"""A fake of GPUs: memory that only queued copies reach, and that other processes open.

It refuses what CUDA and torch refuse: addresses of a device are not valid in this process (code
that touches them ends with a segmentation fault), a handle is opened once and only where its device
is visible, memory of expandable segments has no handle, and copies to the host need pinned memory.
Work for the device is done later, by a thread for each stream. Freed memory that another process
has mapped is not reused before that unmaps it; other memory is reused at once, at the same address,
as torch's allocator does.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from monarch.rdma.memory.gpu import GpuArray, GpuFence, GpuMark, GpuStream, gpu, use_gpu
from monarch.rdma.memory.layout import Run, StoragePlace, layout_of
from monarch.rdma.memory.memory import copy_runs

_ARENA_BYTES = 64 * 2**20
_PAGE = 4096
_NUM_WORDS = _PAGE // 8
_FAR = 2**56
"""What device addresses have over those at which the memory really lies."""

_PAUSE_SECONDS = 0.001


class _Words:
    """Integers that processes share: which handles are in use, and how far fences have advanced."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, _PAGE)
        self._words = memoryview(self._memory).cast("Q")

    def __getitem__(self, at: int) -> int:
        return self._words[at]

    def __setitem__(self, at: int, value: int) -> None:
        self._words[at] = value


class _Block:
    """Frees a storage's memory after the watchers of the storage have been called."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end

    def __del__(self) -> None:
        self._end()


class FakeStorage:
    """An allocation, of this process or opened from another one; freed with the last reference."""

    def __init__(
        self, memory: mmap.mmap, offset: int, size: int, device: int, end: Callable[[], None]
    ) -> None:
        #: Frees the memory as the storage ends.
        self._block = _Block(end)
        self._memory = memory
        #: Where the storage begins in that memory.
        self.offset = offset
        self.size = size
        self.device = device
        #: Its address in this process, and the address that the device has for it.
        self.real = _address(memory) + offset
        self.address = _FAR + self.real
        #: The words of handles that were given out: not 0 while another process maps it.
        self.shares: list[int] = []
        #: Whether it is another process's.
        self.is_received = False

    def view(self) -> memoryview:
        """Return the bytes, which on a real GPU only its kernels could see."""
        return memoryview(self._memory)[self.offset : self.offset + self.size]


@dataclass
class FakePinned:
    """Host memory that a GPU can copy to. ``keep`` is what owns the memory."""

    address: int
    size: int
    keep: object = None
    device = -1

    @property
    def real(self) -> int:
        return self.address


class FakeGpuArray:
    """An array of bytes on the fake GPU, which its owner's kernels read and write by index."""

    def __init__(
        self,
        data: bytes | FakeStorage,
        *,
        step: int = 1,
        is_readonly: bool = False,
        device: int = 0,
    ) -> None:
        if isinstance(data, FakeStorage):
            self.storage = data
        else:
            self.storage = gpu_of_tests().storage(len(data), device)
            self.storage.view()[:] = data
        self.step = step
        self.is_readonly = is_readonly

    def strided(self, step: int) -> FakeGpuArray:
        """Return a view of every ``step``-th byte."""
        return FakeGpuArray(self.storage, step=step)

    def fill_later(self, data: bytes) -> None:
        """Queue a kernel that writes ``data``."""
        storage = self.storage

        def kernel() -> None:
            storage.view()[: len(data)] = data

        gpu_of_tests().queue_kernel(storage.device, kernel)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (len(self),),
            "strides": (self.step,),
            "typestr": "|u1",
            "version": 3,
            "data": (self.storage.address, self.is_readonly),
        }

    def __len__(self) -> int:
        return len(range(0, self.storage.size, self.step))

    def __bytes__(self) -> bytes:
        gpu_of_tests().finish(self.storage.device)
        return bytes(self.storage.view()[:: self.step])

    def __setitem__(self, index: slice, data: bytes) -> None:
        self.storage.view()[:: self.step][index] = data


class _FakeMark:
    """A mark in a stream of this process: reached when all work that was queued before it is
    done.
    """

    def __init__(self) -> None:
        self._done = threading.Event()
        self.error: BaseException | None = None

    def reach(self) -> None:
        self._done.set()

    def wait(self) -> None:
        self._done.wait()
        if self.error is not None:
            raise RuntimeError(str(self.error))


@dataclass
class _OthersFence:
    """Another process's fence. A stream that follows it waits for the place where the fence is
    then.
    """

    words: _Words
    at: int
    world: FakeGpu

    def as_of_now(self) -> _FencePlace:
        self.world.num_followed += 1
        return _FencePlace(self.words, self.at, self.words[self.at])

    def wait(self) -> None:
        self.as_of_now().wait()


@dataclass
class _FencePlace:
    words: _Words
    at: int
    number: int

    def wait(self) -> None:
        while self.words[self.at + 1] < self.number:
            time.sleep(_PAUSE_SECONDS)


class _FakeStream:
    """Runs queued work in order, on a thread of its own, which ends with the stream.

    An error in the work is raised by ``wait`` of the next mark.
    """

    def __init__(self, count_copy: Callable[[StoragePlace, StoragePlace], None]) -> None:
        self._count_copy = count_copy
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._errors: list[BaseException] = []
        arguments = (self._work, self._errors)
        threading.Thread(target=_run, args=arguments, name="fake-gpu", daemon=True).start()

    def __del__(self) -> None:
        self._work.put(None)

    def put(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def follow(self, mark: GpuMark) -> None:
        reached: Any = mark.as_of_now() if isinstance(mark, _OthersFence) else mark
        self.put(reached.wait)

    def copy(self, source: StoragePlace, target: StoragePlace) -> None:
        self._count_copy(source, target)
        self.put(lambda: copy_runs(list(_real_runs(source)), list(_real_runs(target))))

    def mark(self) -> _FakeMark:
        mark, errors = _FakeMark(), self._errors

        def reach() -> None:
            mark.error = errors[0] if errors else None
            errors.clear()
            mark.reach()

        self.put(reach)
        return mark


def _run(work: queue.SimpleQueue[Callable[[], None] | None], errors: list[BaseException]) -> None:
    while (task := work.get()) is not None:
        try:
            task()
        except Exception as error:
            errors.append(error)
        del task


def _real_runs(part: StoragePlace) -> Iterator[Run]:
    for offset, size in part.layout.runs():
        begin = part.address + offset - part.storage.address
        if not 0 <= begin <= begin + size <= part.storage.size:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        yield part.storage.real + begin, size


@dataclass
class _FakeFence:
    world: FakeGpu
    device: int
    at: int

    def handle(self) -> bytes:
        pid, fd = os.getpid(), self.world.words_fd
        return f"{pid} {fd} {self.at}".encode()

    def set(self) -> None:
        words, at = self.world.words, self.at
        number = words[at] + 1

        def reach() -> None:
            words[at + 1] = number

        self.world.queue_kernel(self.device, reach)
        words[at] = number


class FakeGpu:
    """The GPUs that this process sees. ``devices``: their names."""

    def __init__(self, devices: Sequence[str] = ("GPU-0",)) -> None:
        #: The memory of all devices, which other processes open by this descriptor.
        self._fd = os.memfd_create("fake-gpu", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, _ARENA_BYTES)
        self._arena = mmap.mmap(self._fd, _ARENA_BYTES)
        #: The words of handles and fences, likewise.
        self.words_fd = os.memfd_create("fake-gpu-words", os.MFD_CLOEXEC)
        os.ftruncate(self.words_fd, _PAGE)
        self.words = _Words(self.words_fd)
        #: Fences that were made, by device; `monarch.rdma` keeps them here.
        self.fences: dict[int, GpuFence] = {}
        #: The first word that no handle or fence uses.
        self._next_word = 0
        self._names = list(devices)
        #: The offset of the memory that was never allocated.
        self._fresh = 0
        #: Offsets of freed memory, by size.
        self._free: dict[int, list[int]] = {}
        #: Freed memory that others still map, as (words of its handles, offset, size).
        self._limbo: list[tuple[list[int], int, int]] = []
        #: Handles that are open here, as (pid, word).
        self._opened: set[tuple[int, int]] = set()
        #: The streams that run kernels, and the streams that copy, by device.
        self._kernels: dict[int, _FakeStream] = {}
        self._copiers: dict[int, _FakeStream] = {}
        #: Sizes of pinned host memory, by address.
        self._pinned: dict[int, int] = {}
        #: The storages of tensors that `tensor` made, by their address on the host.
        self._tensors: dict[int, weakref.ref[FakeStorage]] = {}
        #: Unset while kernels are stopped.
        self._go = threading.Event()
        self._go.set()
        #: Storages of other processes that are mapped now.
        self.num_opened = 0
        #: Storages of other processes that were ever mapped.
        self.num_opens = 0
        #: Fences of other processes that were waited for.
        self.num_followed = 0
        #: How many copies were made: "across", "within" a device, "to_host", "from_host".
        self.copies: dict[str, int] = {}
        #: Faults that a test may set.
        self.refuses_to_export = False
        self.is_expandable = False
        self.has_no_fences = False

    def __del__(self) -> None:
        os.close(self._fd)
        os.close(self.words_fd)

    def stop_kernels(self) -> None:
        """Delay work that is queued from now on until ``go_on``."""
        self._go.clear()

    def go_on(self) -> None:
        self._go.set()

    @property
    def num_pinned(self) -> int:
        return len(self._pinned)

    @property
    def num_in_limbo(self) -> int:
        """Return how many freed storages other processes still have mapped."""
        self._collect()
        return len(self._limbo)

    def queue_kernel(self, device: int, kernel: Callable[[], None]) -> None:
        self._put(device, self._go.wait)
        self._put(device, kernel)

    def _put(self, device: int, work: Callable[[], Any]) -> None:
        stream = self._kernels.get(device)
        if stream is None:
            stream = self._kernels[device] = _FakeStream(_count_nothing)
        stream.put(work)

    def allocate(self, num_bytes: int, device: int) -> FakeGpuArray:
        return FakeGpuArray(self.storage(num_bytes, device))

    def tensor(self, tensor: Any, device: int = 0) -> Any:
        """Return a tensor with the same values in the device's memory, for kernels of tests.

        Torch treats it as host memory.
        """
        torch = sys.modules["torch"]
        storage = self.storage(max(1, tensor.nbytes), device)
        copy = torch.frombuffer(storage.view(), dtype=tensor.dtype, count=tensor.numel())
        copy = copy.view(tensor.shape)
        copy.copy_(tensor)
        self._tensors[copy.data_ptr()] = weakref.ref(storage)
        weakref.finalize(copy.untyped_storage(), _keep, storage)
        return copy

    def tensor_at(self, tensor: Any) -> tuple[int, Any, str]:
        address, storage = tensor.data_ptr(), tensor.untyped_storage()
        fake_storage = self._tensors.get(storage.data_ptr(), lambda: None)()
        if fake_storage is None:
            return address, storage, str(tensor.device)
        return _FAR + address, fake_storage, f"cuda:{fake_storage.device}"

    def storage(self, num_bytes: int, device: int) -> FakeStorage:
        self._check(device)
        self._collect()
        pages = -(-num_bytes // _PAGE) * _PAGE
        free = self._free.get(pages)
        if free:
            offset = free.pop()
        else:
            offset = self._fresh
            self._fresh += pages
            if self._fresh > _ARENA_BYTES:
                raise MemoryError("the fake GPU has no more memory")
        shares: list[int] = []
        end = functools.partial(self._end, offset, pages, shares)
        storage = FakeStorage(self._arena, offset, num_bytes, device, end)
        storage.shares = shares
        return storage

    def _end(self, offset: int, pages: int, shares: list[int]) -> None:
        if any(self.words[at] for at in shares):
            self._limbo.append((shares, offset, pages))
        else:
            self._free.setdefault(pages, []).append(offset)

    def _collect(self) -> None:
        waiting, self._limbo = self._limbo, []
        for shares, offset, pages in waiting:
            self._end(offset, pages, shares)

    def _check(self, device: int) -> None:
        if not 0 <= device < len(self._names):
            raise RuntimeError("CUDA error: invalid device ordinal")

    def is_there(self) -> bool:
        return bool(self._names)

    def devices(self) -> Sequence[str]:
        return self._names

    def describe(self, data: Any) -> GpuArray:
        about = data.__cuda_array_interface__
        address, is_readonly = about["data"]
        layout = layout_of(about["shape"], about["strides"], 1)
        device = f"cuda:{data.storage.device}"
        return GpuArray(address, layout, is_readonly, data.storage, device)

    def address_of(self, storage: FakeStorage) -> int:
        return storage.address

    def device_of(self, storage: FakeStorage | FakePinned) -> int:
        return storage.device

    def share(self, storage: FakeStorage) -> list[Any]:
        if storage.is_received:
            raise RuntimeError("a storage of another process cannot be shared again")
        if self.is_expandable:
            raise RuntimeError("CUDA error: invalid argument (of an expandable segment)")
        self.finish(storage.device)
        at = self._take_words(1)
        self.words[at] = 1
        storage.shares.append(at)
        location = (storage.offset, storage.size, at)
        return [storage.device, os.getpid(), self._fd, self.words_fd, *location]

    def _take_words(self, num: int) -> int:
        at, self._next_word = self._next_word, self._next_word + num
        if self._next_word > _NUM_WORDS:
            raise RuntimeError("the fake GPU has no more handles")
        return at

    def open(self, handle: Sequence[Any], device: int) -> FakeStorage:
        self._check(device)
        _, pid, fd, words_fd, offset, size, at = handle
        if pid == os.getpid():
            raise RuntimeError("CUDA error: invalid device context (the handle is of this process)")
        if (pid, at) in self._opened:
            raise RuntimeError("CUDA error: the handle is open in this process")
        with _file_of_peer(pid, fd) as opened:
            memory = mmap.mmap(opened, _ARENA_BYTES)
        words = _open_words(pid, words_fd)
        self._opened.add((pid, at))
        self.num_opened += 1
        self.num_opens += 1

        def close() -> None:
            words[at] = 0
            self._opened.discard((pid, at))
            self.num_opened -= 1

        storage = FakeStorage(memory, offset, size, device, close)
        storage.is_received = True
        return storage

    def fence(self, device: int) -> GpuFence:
        if self.has_no_fences:
            raise RuntimeError("CUDA error: events of other processes are not supported")
        return _FakeFence(self, device, self._take_words(2))

    def open_fence(self, handle: bytes, device: int) -> GpuMark:
        pid, fd, at = map(int, handle.split())
        return _OthersFence(_open_words(pid, fd), at, self)

    def stream(self, device: int) -> GpuStream:
        self._check(device)
        copier = self._copiers.get(device)
        if copier is None:
            count = functools.partial(_count_copy, self.copies, device)
            copier = self._copiers[device] = _FakeStream(count)
        return copier

    def mark(self, device: int) -> GpuMark:
        mark = _FakeMark()
        self._check(device)
        if device in self._kernels:
            self._put(device, self._go.wait)
            self._put(device, mark.reach)
        else:
            mark.reach()
        return mark

    def finish(self, device: int) -> None:
        self.mark(device).wait()

    def free_bytes(self, device: int) -> int:
        return _ARENA_BYTES - self._fresh

    def pinned(self, num_bytes: int) -> tuple[Any, int]:
        memory = bytearray(max(1, num_bytes))
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        return FakePinned(address, num_bytes, memory), address

    def pinned_at(self, address: int, num_bytes: int) -> Any:
        for begin, size in self._pinned.items():
            if begin <= address <= address + num_bytes <= begin + size:
                return FakePinned(address, num_bytes)
        return None

    def pin(self, address: int, num_bytes: int) -> bool:
        if address in self._pinned:
            return False
        self._pinned[address] = num_bytes
        return True

    def unpin(self, address: int) -> None:
        del self._pinned[address]

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


def _count_copy(
    copies: dict[str, int], device: int, source: StoragePlace, target: StoragePlace
) -> None:
    ends = source.storage.device, target.storage.device
    if device not in ends:
        raise RuntimeError("a copy is queued on a stream of one of its devices")
    for end in (source.storage, target.storage):
        if not isinstance(end, (FakeStorage, FakePinned)):
            raise RuntimeError("CUDA error: the host's memory is not pinned")
    kinds = {(True, False): "to_host", (False, True): "from_host"}
    within = "within" if ends[0] == ends[1] else "across"
    kind = kinds.get((ends[0] >= 0, ends[1] >= 0), within)
    copies[kind] = copies.get(kind, 0) + 1


def _keep(storage: FakeStorage) -> None:
    """Do nothing. A finalizer has ``storage`` as its argument, which keeps the storage until it
    runs.
    """


def _count_nothing(source: StoragePlace, target: StoragePlace) -> None:
    raise RuntimeError("copies are queued on the stream that is for them")


@contextlib.contextmanager
def _file_of_peer(pid: int, fd: int) -> Iterator[int]:
    """Open a file that another process has open."""
    opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        yield opened
    finally:
        os.close(opened)


_words_of_peers: weakref.WeakValueDictionary[tuple[int, int], _Words] = (
    weakref.WeakValueDictionary()
)


def _open_words(pid: int, fd: int) -> _Words:
    words = _words_of_peers.get((pid, fd))
    if words is None:
        with _file_of_peer(pid, fd) as opened:
            words = _words_of_peers[pid, fd] = _Words(opened)
    return words


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def gpu_of_tests(devices: Sequence[str] = ("GPU-0",)) -> FakeGpu:
    """Return this process's fake GPU library; install one with these devices if there is none."""
    library = gpu()
    if not isinstance(library, FakeGpu):
        library = FakeGpu(devices)
        use_gpu(library)
    return library
