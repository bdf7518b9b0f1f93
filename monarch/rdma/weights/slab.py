"""The shared memory of a published state dict, in two halves, each with a version.

A writer fills one half while readers use the other. A reader has a lock on its half, which the
kernel releases if the reader dies; a writer waits for that lock, for as long as a copy takes.
Processes of one host map the memory, so its bytes stay as long as one of them lives, even when the
process that made it has ended. If a GPU copies to it or from it, its pages are made and pinned
once.

A third lock and version belong to the copy on the publisher's GPU (``ON_DEVICE``).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import mmap
import os
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

from monarch.rdma.memory import byte_locks
from monarch.rdma.memory.byte_locks import ALONE, SHARED
from monarch.rdma.memory.gpu import gpu
from monarch.rdma.memory.layout import Run
from monarch.rdma.memory.table import closing, new_key
from monarch.rdma.memory.workers import Workers

HEADER_BYTES = 4096
VERSION = struct.Struct("=Q")

ON_DEVICE = 2

_MAGIC = struct.Struct("=QQ")
_VERSIONS_OFFSET = 16
_POPULATE_WRITE = 23  # The advice to madvise: make all pages, as writes to them would.
_POPULATE_BYTES = 64 * 2**20
_AT_ONCE = 8


class SlabPlace(NamedTuple):
    """Where processes of the same host find a slab."""

    machine: str
    pid: int
    fd: int
    key: int
    half_bytes: int


def version_run(half: int) -> Run:
    """Return where the version of a half is in a slab, as offset and length."""
    return _VERSIONS_OFFSET + VERSION.size * half, VERSION.size


class Slab:
    """Memory with two halves of ``half_bytes`` each, one for each of two versions.

    A page before the halves has their versions; version 0 means that a half is empty.
    """

    #: How long a writer waits for the readers of a half.
    patience_seconds = 5.0

    def __init__(self, fd: int, place: SlabPlace) -> None:
        self.fd = fd
        self.place = place
        self.half_bytes = place.half_bytes
        self.memory = mmap.mmap(fd, HEADER_BYTES + 2 * place.half_bytes)
        #: The address at which the memory is pinned; 0 if it is not pinned.
        self._pinned_at = 0
        #: Whether ``pin`` has been called.
        self._is_tried = False

    @classmethod
    def create(cls, num_bytes: int, machine: str) -> Slab:
        """Make a slab whose halves have at least ``num_bytes``. Raises ``OSError`` if there is too
        little memory."""
        half = -(-max(num_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        fd = os.memfd_create("monarch-rdma-slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, HEADER_BYTES + 2 * half)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            key = new_key()
            os.pwrite(fd, _MAGIC.pack(key, half), 0)
            return cls(fd, SlabPlace(machine, os.getpid(), fd, key, half))
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def of_peer(cls, place: SlabPlace) -> Slab:
        """Map the slab of a process of this host. Raises ``OSError`` if that process has ended."""
        fd = os.open(f"/proc/{place.pid}/fd/{place.fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.pread(fd, _MAGIC.size, 0) != _MAGIC.pack(place.key, place.half_bytes):
                raise ProcessLookupError(f"process {place.pid} is another one by now")
            return cls(fd, place)
        except BaseException:
            os.close(fd)
            raise

    def pin(self, workers: Workers) -> None:
        """Allocate all pages and pin them, so that GPUs copy to and from them directly.

        If that fails, copies go through other pinned memory.
        """
        if self._is_tried:
            return
        self._is_tried = True
        size = len(self.memory)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        populate = ctypes.CDLL(None).madvise  # Unlike mmap's, it lets other threads run.
        populate.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        tasks = [
            functools.partial(
                populate, address + at, min(_POPULATE_BYTES, size - at), _POPULATE_WRITE
            )
            for at in range(0, size, _POPULATE_BYTES)
        ]
        workers.run_all(tasks, _AT_ONCE)
        with contextlib.suppress(RuntimeError):
            if gpu().pin(address, size):
                self._pinned_at = address

    def half(self, number: int) -> memoryview:
        start = HEADER_BYTES + number * self.half_bytes
        return memoryview(self.memory)[start : start + self.half_bytes]

    def version(self, half: int) -> int:
        return int(VERSION.unpack_from(self.memory, version_run(half)[0])[0])

    def _set_version(self, half: int, version: int) -> None:
        VERSION.pack_into(self.memory, version_run(half)[0], version)

    @contextlib.contextmanager
    def filling(self, half: int, version: int) -> Iterator[memoryview]:
        """Wait for the half's readers, and yield the half: the caller fills it with ``version``.

        If ``half`` is ``ON_DEVICE``, the caller fills the copy on the GPU, which is not in the
        slab.
        """
        with closing(self._open()) as fd:
            # A reader that was stopped in the middle is not waited for longer: it will notice.
            with contextlib.suppress(TimeoutError):
                byte_locks.lock(fd, half, ALONE, time.monotonic() + self.patience_seconds)
            try:
                self._set_version(half, 0)
                yield self.half(half)
                self._set_version(half, version)
            finally:
                # Closing alone would leave the lock to a child that was forked meanwhile.
                byte_locks.unlock(fd, half)

    @contextlib.contextmanager
    def reading(self, half: int, version: int, deadline: float) -> Iterator[memoryview | None]:
        """Yield the half ``half``; ``None`` if it does not have ``version``.

        Until the end of the block, a writer waits for at most ``patience_seconds`` before it
        overwrites the half.
        """
        with closing(self._open()) as fd, byte_locks.locked(fd, half, SHARED, deadline):
            yield self.half(half) if self.version(half) == version else None

    def _open(self) -> int:
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)

    def close(self) -> None:
        if self._pinned_at:
            gpu().unpin(self._pinned_at)
            self._pinned_at = 0
        with contextlib.suppress(OSError):
            os.close(self.fd)
        self.fd = -1

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            self.close()
