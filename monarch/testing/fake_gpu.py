"""A fake of GPUs: memory that only queued copies reach, and that other processes open.

It refuses what CUDA and torch refuse: addresses of a device are not valid in this process (code
that touches them ends with a segmentation fault), a handle is opened once and only where its device
is visible, memory of expandable segments has no handle, and copies to the host need pinned memory.
Work for the device is done later, by a thread for each stream. Freed memory that another process
has mapped is not reused before that unmaps it; other memory is reused at once, at the same address,
as torch's allocator does.
"""

from __future__ import annotations

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
        self._block = _Block(end)
        self._memory = memory
        self.offset = offset
        self.size = size
        self.device = device
        self.real = _address(memory) + offset
        self.address = _FAR + self.real
        self.shares: list[int] = []
        self.is_received = False

    def view(self) -> memoryview:
        """Return the bytes, which on a real GPU only its kernels could see."""
        return memoryview(self._memory)[self.offset : self.offset + self.size]


class FakePinned:
    """Host memory that a GPU can copy to."""

    device = -1

    def __init__(self, address: int, size: int, keep: object = None) -> None:
        self.address = self.real = address
        self.size = size
        self._keep = keep


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
            "shape": (len(self),), "strides": (self.step,), "typestr": "|u1", "version": 3,
            "data": (self.storage.address, self.is_readonly),
        }  # fmt: skip

    def __len__(self) -> int:
        return len(range(0, self.storage.size, self.step))

    def __bytes__(self) -> bytes:
        gpu_of_tests().finish(self.storage.device)
        return bytes(self.storage.view()[:: self.step])

    def __setitem__(self, index: slice, data: bytes) -> None:
        self.storage.view()[:: self.step][index] = data


class _FakeMark:
    """A mark behind work of this process."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self.error: BaseException | None = None

    def reach(self) -> None:
        self._done.set()

    def wait(self) -> None:
        self._done.wait()
        if self.error is not None:
            raise RuntimeError(str(self.error))


class _OthersFence:
    """Another process's fence, at the place where it was when it was followed."""

    def __init__(self, words: _Words, at: int, world: FakeGpu) -> None:
        self._words, self._at = words, at
        self._world = world

    def as_of_now(self) -> _FencePlace:
        self._world.num_followed += 1
        return _FencePlace(self._words, self._at, self._words[self._at])

    def wait(self) -> None:
        self.as_of_now().wait()


class _FencePlace:
    def __init__(self, words: _Words, at: int, number: int) -> None:
        self._words, self._at, self._number = words, at, number

    def wait(self) -> None:
        while self._words[self._at + 1] < self._number:
            time.sleep(_PAUSE_SECONDS)


class _FakeStream:
    """Runs queued work in order, on a thread of its own, which ends with the stream.

    An error is raised by the mark behind the work.
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
        place: Any = mark.as_of_now() if isinstance(mark, _OthersFence) else mark
        self.put(place.wait)

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


def _real_runs(place: StoragePlace) -> Iterator[Run]:
    for offset, size in place.layout.runs():
        begin = place.address + offset - place.storage.address
        if not 0 <= begin <= begin + size <= place.storage.size:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        yield place.storage.real + begin, size


class _FakeFence:
    def __init__(self, world: FakeGpu, device: int, at: int) -> None:
        self._world, self._device, self._at = world, device, at

    def handle(self) -> bytes:
        pid, fd = os.getpid(), self._world.words_fd
        return f"{pid} {fd} {self._at}".encode()

    def set(self) -> None:
        words, at = self._world.words, self._at
        number = words[at] + 1

        def reach() -> None:
            words[at + 1] = number

        self._world.queue_kernel(self._device, reach)
        words[at] = number


class FakeGpu:
    """The GPUs that this process sees.

    ``num_opened`` counts storages of others that are mapped, ``num_opens`` all openings; ``copies``
    are the copies made: "across", "within" a device, "to_host", "from_host".
    """

    def __init__(self, devices: Sequence[str] = ("GPU-0",)) -> None:
        self._fd = os.memfd_create("fake-gpu", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, _ARENA_BYTES)
        self._arena = mmap.mmap(self._fd, _ARENA_BYTES)
        self.words_fd = os.memfd_create("fake-gpu-words", os.MFD_CLOEXEC)
        os.ftruncate(self.words_fd, _PAGE)
        self.words = _Words(self.words_fd)
        self.fences: dict[int, GpuFence] = {}
        self._next_word = 0
        self._names = list(devices)
        self._fresh = 0
        self._free: dict[int, list[int]] = {}
        self._limbo: list[tuple[list[int], int, int]] = []
        self._opened: set[tuple[int, int]] = set()
        self._kernels: dict[int, _FakeStream] = {}
        self._copiers: dict[int, _FakeStream] = {}
        self._pinned: dict[int, int] = {}
        self._tensors: dict[int, weakref.ref[FakeStorage]] = {}
        self._go = threading.Event()
        self._go.set()
        self.num_opened = self.num_opens = self.num_followed = 0
        self.copies: dict[str, int] = {}
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
        made = torch.frombuffer(storage.view(), dtype=tensor.dtype, count=tensor.numel())
        made = made.view(tensor.shape)
        made.copy_(tensor)
        self._tensors[made.data_ptr()] = weakref.ref(storage)
        weakref.finalize(made.untyped_storage(), _keep, storage)
        return made

    def tensor_at(self, tensor: Any) -> tuple[int, Any, str]:
        address, storage = tensor.data_ptr(), tensor.untyped_storage()
        found = self._tensors.get(storage.data_ptr(), lambda: None)()
        if found is None:
            return address, storage, str(tensor.device)
        return _FAR + address, found, f"cuda:{found.device}"

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
        found = FakeStorage(self._arena, offset, num_bytes, device, end)
        found.shares = shares
        return found

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
        place = (storage.offset, storage.size, at)
        return [storage.device, os.getpid(), self._fd, self.words_fd, *place]

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
        memory = _of_peer(pid, fd, _ARENA_BYTES)
        words = _open_words(pid, words_fd)
        self._opened.add((pid, at))
        self.num_opened += 1
        self.num_opens += 1

        def close() -> None:
            words[at] = 0
            self._opened.discard((pid, at))
            self.num_opened -= 1

        found = FakeStorage(memory, offset, size, device, close)
        found.is_received = True
        return found

    def fence(self, device: int) -> GpuFence:
        if self.has_no_fences:
            raise RuntimeError("CUDA error: events of other processes are not supported")
        return _FakeFence(self, device, self._take_words(2))

    def open_fence(self, handle: bytes, device: int) -> GpuMark:
        pid, fd, at = map(int, handle.split())
        return _OthersFence(_open_words(pid, fd), at, self)

    def stream(self, device: int) -> GpuStream:
        self._check(device)
        found = self._copiers.get(device)
        if found is None:
            count = functools.partial(_count_copy, self.copies, device)
            found = self._copiers[device] = _FakeStream(count)
        return found

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
        made = bytearray(max(1, num_bytes))
        address = ctypes.addressof(ctypes.c_char.from_buffer(made))
        return FakePinned(address, num_bytes, made), address

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
    """Do nothing: as a finalizer's argument, the storage is kept until then."""


def _count_nothing(source: StoragePlace, target: StoragePlace) -> None:
    raise RuntimeError("copies are queued on the stream that is for them")


def _of_peer(pid: int, fd: int, size: int) -> mmap.mmap:
    own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(own, size)
    finally:
        os.close(own)


_others: weakref.WeakValueDictionary[tuple[int, int], _Words] = weakref.WeakValueDictionary()


def _open_words(pid: int, fd: int) -> _Words:
    found = _others.get((pid, fd))
    if found is None:
        own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            found = _others[pid, fd] = _Words(own)
        finally:
            os.close(own)
    return found


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def gpu_of_tests(devices: Sequence[str] = ("GPU-0",)) -> FakeGpu:
    """Return this process's fake GPU library; install one with these devices if there is none."""
    found = gpu()
    if not isinstance(found, FakeGpu):
        found = FakeGpu(devices)
        use_gpu(found)
    return found
