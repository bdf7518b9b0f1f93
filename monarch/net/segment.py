"""Memory that processes of one machine share: segments, and views of the regions in them.

A segment is anonymous (a memfd): it has no name that could be left behind, and vanishes with the
last process that maps it. It begins with a byte for each *hold*, which is one receiver's claim on
one region. The owner of the segment sets the byte when it sends; the receiver clears it when its
last view of the region is gone; the owner checks it before it uses the region again. So releasing a
region needs no message and no lock, and may happen on any thread that collects garbage.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import os
import pickle
import weakref
from typing import Any

PAGE_BYTES = mmap.PAGESIZE

NUM_HOLDS = 4 * PAGE_BYTES
"""How many holds a segment has room for, and where its regions begin."""

_MADV_POPULATE_WRITE = 23

_STRIDE = 16 * 2**20
"""How much memory is allocated at once. No other thread runs Python code meanwhile."""


class Segment:
    """A segment as one process has it mapped, its owner or another."""

    def __init__(self, fd: int) -> None:
        """Map the memory behind ``fd``, which belongs to the segment once this has returned."""
        self.size = os.fstat(fd).st_size
        self.shared = mmap.mmap(fd, self.size)
        self._private: mmap.mmap | None = None
        self._backed = 0
        # Last: if something above fails, the caller still closes the descriptor.
        self.fd = fd

    @classmethod
    def create(cls, size: int) -> Segment:
        """Make a new segment. It uses memory only up to where ``back`` was called.

        Raises ``OSError`` if the system cannot make one.
        """
        if not hasattr(os, "memfd_create"):
            raise OSError(errno.ENOSYS, "this system has no memory that can be handed on")
        fd = os.memfd_create("monarch", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            # A process that maps it relies on its size: were it shorter, reading would end that
            # process.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            return cls(fd)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def of_peer(cls, fd: int) -> Segment:
        """Map a segment that another process has handed over, if it is safe to read.

        Raises ``ValueError`` or ``OSError`` for memory that its owner could take away: reading it
        then would end this process by SIGBUS.
        """
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError("its size is not sealed")
        if os.fstatvfs(fd).f_bsize != PAGE_BYTES:
            raise ValueError("it is of huge pages, which may be missing when they are needed")
        if os.fstat(fd).st_size <= NUM_HOLDS:
            raise ValueError("it is too small to hold anything")
        return cls(fd)

    @property
    def private(self) -> mmap.mmap:
        """The same memory as a private mapping: what this process writes there stays private."""
        if self._private is None:
            self._private = mmap.mmap(self.fd, self.size, access=mmap.ACCESS_COPY)
        return self._private

    def back(self, end: int) -> None:
        """Allocate the memory up to ``end``. Raises ``OSError`` if there is not enough.

        Without it, writing beyond the allocated memory would end the process by SIGBUS.
        """
        end = -(-end // PAGE_BYTES) * PAGE_BYTES
        for start in range(self._backed, end, _STRIDE):
            size = min(_STRIDE, end - start)
            try:
                self.shared.madvise(_MADV_POPULATE_WRITE, start, size)
            except (OSError, ValueError):  # A kernel before 5.14, or no memory: this tells which.
                os.posix_fallocate(self.fd, start, size)
        self._backed = max(self._backed, end)

    def __del__(self) -> None:
        # The mappings stay until the last view of them is gone; the descriptor need not.
        with contextlib.suppress(AttributeError, OSError):
            os.close(self.fd)


def view_region(
    segment: Segment, offset: int, size: int, hold: int, *, private: bool
) -> memoryview:
    """Return a writable view of a region. ``hold`` is cleared once its last view here is gone.

    Arrays made from the view, and slices of it, count as views. ``private``: other processes read
    the region too, and must not see what is written to it here.
    """
    memory = segment.private if private else segment.shared
    size = -(-size // PAGE_BYTES) * PAGE_BYTES
    block = _block_type(size).from_buffer(memory, offset)
    lease = _Lease(block, _returned)
    lease.flags = segment.shared
    lease.hold = hold
    lease.pages = (memory, offset, size) if private else None
    lease.pid = os.getpid()
    _leases[id(lease)] = lease
    # Not memoryview(block): that has a format which cannot be cast to bytes.
    return pickle.PickleBuffer(block).raw()


@functools.lru_cache(maxsize=64)
def _block_type(size: int) -> Any:
    return ctypes.c_ubyte * size


class _Lease(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that clears a region's hold when the last view is gone."""

    __slots__ = ("flags", "hold", "pages", "pid")
    flags: mmap.mmap
    hold: int
    pages: tuple[mmap.mmap, int, int] | None
    pid: int


_leases: dict[int, _Lease] = {}


def _returned(lease: Any) -> None:
    # Runs wherever garbage is collected, so it takes no lock and logs nothing.
    _leases.pop(id(lease), None)
    if lease.pid != os.getpid():
        return  # In a forked copy of this process: the original still uses the region.
    if lease.pages is not None:
        memory, offset, size = lease.pages
        # Drop our own version of the pages, or the next message in them would not be seen.
        memory.madvise(mmap.MADV_DONTNEED, offset, size)
    lease.flags[lease.hold] = 0


def _keep_all() -> None:
    """Make this process, the parent of a fork, never clear the holds of its regions.

    The child has the same views, and nobody knows when it stops using them.
    """
    for lease in list(_leases.values()):
        lease.pid = 0


os.register_at_fork(after_in_parent=_keep_all)
