"""A rank's memory for copies of its state, which outlives its process.

It is a memfd that the host agent keeps open (see ``monarch/runtime/hosts/held_memory.py``): it has
no name that could be left behind, and is freed when the agent and the ranks are gone. It begins
with marks, and has two halves; the second takes up room only if copies are made while an older one
must stay. A half is

    text     the state's containers and values, and where its tensors lie
    tensors  one after the other

The mark of a half is ``EMPTY`` while it is written, ``SMALL`` when only the tensors are missing
that are copied during the next step, and ``WHOLE`` at the end. So a process may die at any moment.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import json
import mmap
import os
import sys
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from monarch.runs.hold.packed_state import TensorPlace, is_dense, tensor_at, unpacked
from monarch.runtime import process
from monarch.runtime.hosts.held_memory import MARKS, NUM_MARKS, MemoryPlace, find_held, have_held

EMPTY, SMALL, WHOLE = range(3)

_MAGIC = 0x6D6F6E6372636F70
_PAGE = mmap.PAGESIZE
_STRIDE = 64 * 2**20
_MADV_POPULATE_WRITE = 23
_MAX_THREADS = 8
_FEW_BYTES = 256 * 1024  # by how much small state may grow before another memory is made


@dataclass(frozen=True)
class HalfMarks:
    """The marks of one half of the memory, in its header.

    ``number`` counts the copies: the half with the greater number has the newer copy.
    """

    number: int
    stage: int
    step: int
    generation: int
    text_bytes: int


@dataclass(frozen=True)
class CopyText:
    """What is written before a copy's tensors: the state without them, and each tensor's place."""

    state: str
    places: tuple[TensorPlace, ...]
    #: Sums of the bits of some tensors, by number, from before the step.
    sums: Mapping[str, int]

    @property
    def num_bytes(self) -> int:
        """Return the size of all tensors in bytes."""
        return max((place.offset + place.num_bytes for place in self.places), default=0)

    @functools.cached_property
    def encoded(self) -> bytes:
        """Return the bytes that are written: a checksum, then JSON."""
        fields = {"state": self.state, "places": self.places, "sums": self.sums}
        data = json.dumps(fields, separators=(",", ":")).encode()
        return zlib.crc32(data).to_bytes(4, "little") + data

    @classmethod
    def decoded(cls, data: bytes) -> CopyText:
        if zlib.crc32(data[4:]) != int.from_bytes(data[:4], "little"):
            raise ValueError("its text is damaged")
        fields = json.loads(data[4:])
        places = tuple(
            TensorPlace(dtype, tuple(shape), tuple(stride), offset, num_bytes)
            for dtype, shape, stride, offset, num_bytes in fields["places"]
        )
        return cls(fields["state"], places, fields["sums"])


class StateMemory:
    """The memory of the rank ``name`` of the run ``owner``, in which copies of its state are
    written. Without an owner, no other process gets it.

    Only one thread at a time may use it.
    """

    def __init__(self, owner: str, name: str) -> None:
        self._owner = owner
        self._name = name
        self._fd = -1
        self._half_bytes = 0
        #: The mapped memory; ``None`` before the first copy.
        self._memory: Any = None
        #: The same, as a tensor.
        self._bytes: Any = None
        #: How many bytes of each half are allocated.
        self._backed = [0, 0]
        #: How many bytes an earlier process has allocated.
        self._adopted_bytes = 0
        #: Why CUDA could not register the memory; "" if it was not asked to, or could.
        self.why_unpinned = ""
        #: The halves that are registered with CUDA.
        self._pinned: list[int] = []
        #: Whether the host agent keeps the memory open.
        self._is_held = False
        #: A smaller memory that the host agent keeps until this one has a whole copy.
        self._older: StateMemory | None = None

    def num_new_bytes(self, text: CopyText, *, keeps_older: bool) -> int:
        """Return how many bytes of memory must be allocated for a copy, beyond the memory that
        exists already.
        """
        needed = _num_bytes_of(text)
        self._adopt(needed)
        if needed > self._half_bytes:
            return _half_bytes_for(needed)
        allocated = max(self._adopted_bytes, self._backed[self._next_half(keeps_older)])
        return max(0, needed - allocated)

    def begin(
        self, text: CopyText, step: int, generation: int, *, keeps_older: bool
    ) -> CopyInMemory:
        """Return a copy to be written. ``keeps_older``: do not overwrite the newest whole copy.

        Raises ``OSError`` if memory is short.
        """
        needed = _num_bytes_of(text)
        self._adopt(needed)
        if needed > self._half_bytes:
            self._make(_half_bytes_for(needed))
        half = self._next_half(keeps_older)
        number = 1 + max(marks.number for marks in self._marks())
        encoded = text.encoded
        self._mark(half, HalfMarks(0, EMPTY, 0, 0, 0))
        start = _PAGE + half * self._half_bytes
        self._back(half, len(encoded) + _PAGE)
        self._memory[start : start + len(encoded)] = encoded
        marks = HalfMarks(number, EMPTY, step, generation, len(encoded))
        return CopyInMemory(self, half, marks, text, start + _aligned(len(encoded)))

    def close(self) -> None:
        """Release the memory; the host agent keeps its copies."""
        self._unpin()
        self._memory = self._bytes = None
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()

    def _next_half(self, keeps_older: bool) -> int:
        if not keeps_older or self._memory is None:
            return 0
        first, second = self._marks()
        newest = max((first, second), key=lambda marks: (marks.stage == WHOLE, marks.number))
        return 1 if newest is first and first.stage == WHOLE else 0

    def _adopt(self, num_bytes: int) -> None:
        """Continue to use the memory of the process that had this rank before.

        Does nothing if there is none, or if its halves have fewer than ``num_bytes``.
        """
        if not self._owner or self._fd >= 0:
            return
        node, host = process.current().node, _host()
        if host is None:
            return
        for place in find_held(node, {0: host}, self._owner).get(0, []):
            if place.name == self._name and _half_bytes_of(place) >= num_bytes:
                with contextlib.suppress(OSError):
                    self._map(place.open(), _half_bytes_of(place))
                    self._is_held = True
                    self._adopted_bytes = os.fstat(self._fd).st_blocks * 512

    def _make(self, half_bytes: int) -> None:
        fd = os.memfd_create("monarch-state", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(fd, 0o600)
            os.ftruncate(fd, _PAGE + 2 * half_bytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            os.pwrite(fd, MARKS.pack(_MAGIC, half_bytes, *[0] * (NUM_MARKS - 2)), 0)
        except BaseException:
            os.close(fd)
            raise
        if self._is_held:
            # The host keeps the smaller one until there is a whole copy in this one.
            self._older = StateMemory("", "")
            self._older._fd, self._fd = self._fd, -1
        self.close()
        self._is_held = False
        self._map(fd, half_bytes)
        if self._older is None:
            self._have_held()

    def _map(self, fd: int, half_bytes: int) -> None:
        torch: Any = sys.modules["torch"]
        self._fd, self._half_bytes, self._backed, self._pinned = fd, half_bytes, [0, 0], []
        self._adopted_bytes = 0
        self._memory = mmap.mmap(fd, _PAGE + 2 * half_bytes)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)

    def _have_held(self) -> None:
        host = _host()
        if self._owner and host is not None:
            node = process.current().node
            error = have_held(node, host, self._owner, self._name, self._fd)
            if error:
                raise OSError(error)
            self._is_held = True
        if self._older is not None:
            self._older.close()
            self._older = None

    def _marks(self) -> tuple[HalfMarks, HalfMarks]:
        return marks_of(MARKS.unpack_from(self._memory, 0))

    def _mark(self, half: int, marks: HalfMarks) -> None:
        start = 8 * (2 + 5 * half)
        # The stage is empty while the others are written, as it says that they are valid.
        for position, value in (
            (1, EMPTY),
            (0, marks.number),
            (2, marks.step),
            (3, marks.generation),
            (4, marks.text_bytes),
            (1, marks.stage),
        ):
            offset = start + 8 * position
            self._memory[offset : offset + 8] = value.to_bytes(8, sys.byteorder)
        if marks.stage == WHOLE and not self._is_held:
            self._have_held()

    def _back(self, half: int, num_bytes: int) -> None:
        """Allocate the memory of a half before it is written. If the host has no memory left, a
        write would end the process by SIGBUS.
        """
        end = min(-(-num_bytes // _PAGE) * _PAGE, self._half_bytes)
        first = _PAGE + half * self._half_bytes
        base = self._bytes.data_ptr() + first

        def populate(start: int) -> None:
            size = min(_STRIDE, end - start)
            # By ctypes: other threads run meanwhile.
            if _libc().madvise(base + start, size, _MADV_POPULATE_WRITE):
                os.posix_fallocate(self._fd, first + start, size)

        starts = range(self._backed[half], end, _STRIDE)
        if len(starts) > 1:
            # The kernel clears less than 2 GB a second in one thread.
            with ThreadPoolExecutor(_num_threads(), "monarch-populate") as threads:
                list(threads.map(populate, starts))
        elif starts:
            populate(starts[0])
        self._backed[half] = max(self._backed[half], end)

    def _pin(self, half: int) -> None:
        """Register the memory with CUDA, so that it copies there directly. If that fails, copies
        only take longer; ``why_unpinned`` says why."""
        if half in self._pinned or self.why_unpinned:
            return
        self._back(half, self._half_bytes)
        start = self._bytes.data_ptr() + _PAGE + half * self._half_bytes
        torch: Any = sys.modules["torch"]
        error = int(torch.cuda.cudart().cudaHostRegister(start, self._half_bytes, 0))
        if not error:
            self._pinned.append(half)
            return
        self.why_unpinned = f"cudaHostRegister returned {error}"
        with contextlib.suppress(RuntimeError):  # This thread's next kernel raises the same error.
            torch.ones(1, device="cuda")

    def _unpin(self) -> None:
        for half in self._pinned:
            start = self._bytes.data_ptr() + _PAGE + half * self._half_bytes
            sys.modules["torch"].cuda.cudart().cudaHostUnregister(start)
        self._pinned = []


@dataclass
class CopyInMemory:
    """A copy that is being written into one of the two halves of ``memory``."""

    memory: StateMemory
    half: int
    marks: HalfMarks
    text: CopyText
    #: The offset of the tensors in the memory.
    start: int

    def back(self, num_bytes: int) -> None:
        """Allocate the memory for the first ``num_bytes`` of the tensors.

        Raises ``OSError`` if the host's memory is short.
        """
        first = self.start - _PAGE - self.half * self.memory._half_bytes
        self.memory._back(self.half, first + num_bytes)

    def pin(self) -> None:
        """Register the memory with CUDA, so that it copies there directly."""
        self.memory._pin(self.half)

    def tensor(self, number: int) -> Any:
        """Return the tensor with that number, in the memory, which must be allocated."""
        place = self.text.places[number]
        begin = self.start + place.offset
        moved = TensorPlace(place.dtype, place.shape, place.stride, begin, place.num_bytes)
        return tensor_at(self.memory._bytes, moved)

    def mark(self, stage: int) -> None:
        """Set the mark that says how much of the copy is written."""
        self.memory._mark(self.half, replace(self.marks, stage=stage))


@dataclass(frozen=True)
class CopyPlace:
    """A rank's copy in the memory of its host: where a process of the host finds it, and its
    marks."""

    place: MemoryPlace
    half: int
    marks: HalfMarks

    def read(self) -> Any:
        """Return the state of this copy. Its tensors share the memory: copy what must be kept.

        In a copy that is not whole, only the small parts are valid. Raises ``OSError`` if the
        memory is gone, and ``ValueError`` if it was overwritten, or if a step wrote into the state
        during the copy.
        """
        torch: Any = sys.modules["torch"]
        fd = self.place.open()
        try:
            memory = mmap.mmap(fd, self.place.size, access=mmap.ACCESS_COPY)
        finally:
            os.close(fd)
        half_bytes = _half_bytes_of(self.place)
        if marks_of(MARKS.unpack_from(memory, 0))[self.half] != self.marks:
            raise ValueError("it has been written over")
        start = _PAGE + self.half * half_bytes
        text = CopyText.decoded(bytes(memory[start : start + self.marks.text_bytes]))
        first = start + _aligned(self.marks.text_bytes)
        data = torch.frombuffer(memory, dtype=torch.uint8)[first : first + text.num_bytes]
        tensors = [tensor_at(data, place) for place in text.places]
        if self.marks.stage == WHOLE:
            summed = [tensors[int(number)] for number in text.sums]
            if sums_of_bits(summed) != list(text.sums.values()):
                raise ValueError("the step had written into it before it was copied")
        return unpacked(text.state, tensors)


def copies_in(places: Sequence[MemoryPlace]) -> list[CopyPlace]:
    """Return the copies in both halves of each memory."""
    return [
        CopyPlace(place, half, marks)
        for place in places
        if place.marks[0] == _MAGIC
        for half, marks in enumerate(marks_of(place.marks))
        if marks.stage != EMPTY
    ]


def marks_of(values: Sequence[int]) -> tuple[HalfMarks, HalfMarks]:
    """Return the marks of both halves."""
    return HalfMarks(*values[2:7]), HalfMarks(*values[7:12])


def sums_of_bits(tensors: Sequence[Any]) -> list[int]:
    """Return the sum of all bits of each tensor, eight bytes at a time, in the order in which a
    copy has them.

    Waits once for each device.
    """
    torch: Any = sys.modules["torch"]
    by_device: dict[Any, list[tuple[int, Any]]] = {}
    for number, tensor in enumerate(tensors):
        by_device.setdefault(tensor.device, []).append((number, _sum_of_bits(torch, tensor)))
    sums = [0] * len(tensors)
    for numbered in by_device.values():
        values = torch.stack([value for _, value in numbered]).tolist()
        for (number, _), value in zip(numbered, values, strict=True):
            sums[number] = value % (1 << 63)
    return sums


def _sum_of_bits(torch: Any, tensor: Any) -> Any:
    plain = tensor.detach() if is_dense(tensor) else tensor.detach().contiguous()
    flat = plain.as_strided((plain.numel(),), (1,), plain.storage_offset())
    data = flat.view(torch.uint8)
    if data.data_ptr() % 8 or data.storage_offset() % 8:
        data = data.clone()
    even = data.numel() // 8 * 8
    total = data[:even].view(torch.int64).sum()
    return total if even == data.numel() else total + data[even:].sum(dtype=torch.int64)


def _half_bytes_of(place: MemoryPlace) -> int:
    return place.marks[1]


def _num_bytes_of(text: CopyText) -> int:
    return _aligned(len(text.encoded)) + text.num_bytes


def _half_bytes_for(num_bytes: int) -> int:
    return _aligned(num_bytes + _FEW_BYTES)


def _aligned(number: int) -> int:
    return -(-number // _PAGE) * _PAGE


def _host() -> Any:
    """Return the address of this proc's host agent; ``None`` in the client."""
    return getattr(process.current(), "host", None)


def _num_threads() -> int:
    """Return how many threads may allocate memory: this rank's share of the processors."""
    num_ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(_MAX_THREADS, len(os.sched_getaffinity(0)) // num_ranks_here))


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return libc
