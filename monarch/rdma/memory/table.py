"""The table of a process's registrations, which other processes read without its help.

It lies in anonymous shared memory. A reader reads an entry before it copies the bytes and again
after: if the key is the same both times, the registration was valid for the whole copy. A writer
takes a lock on the entry, which the kernel releases if the writer dies; memory is not freed before
the lock is free.

An entry has: the key, which is unique; the state; how many writes into the memory have begun, and
how many have ended.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import struct
from collections.abc import Iterator
from typing import NamedTuple

from monarch.rdma.memory import byte_locks
from monarch.rdma.memory.byte_locks import ALONE, SHARED

ENTRY = struct.Struct("=QQQQ")
ENTRY_BYTES = 64
NUM_ENTRIES = 2**18

LIVE, DROPPED, FREED = range(1, 4)  # An unused entry has the state 0.

_USE, _COUNT, _ATOMIC = range(3)  # which byte of an entry a lock is on
_END_SECONDS = 5.0
"""So much longer than its deadline a write may take to be counted as ended."""

_STATE, BEGUN, ENDED = 8, 16, 24  # where in an entry
_WORD = struct.Struct("=Q")


class TableEntry(NamedTuple):
    """One registration, as read from the table."""

    key: int
    state: int
    begun: int
    ended: int

    @property
    def is_at_rest(self) -> bool:
        """Return whether no write into the memory is in progress.

        It counts only writes through a buffer, and the owner's within ``changing``.
        """
        return self.begun == self.ended


class TablePlace(NamedTuple):
    """Where another process finds the table of process ``pid``.

    The table begins with ``nonce``: so a process that got the same pid later is recognized.
    """

    pid: int
    started: int
    fd: int
    address: int
    nonce: int

    def open(self) -> int:
        """Open a new descriptor of the table, for locks.

        Raises ``OSError`` if the process has ended, or if the pid is another process's by now.
        """
        fd = os.open(f"/proc/{self.pid}/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)
        if os.pread(fd, 8, 0) != _WORD.pack(self.nonce):
            os.close(fd)
            raise ProcessLookupError(f"process {self.pid} is another one by now")
        return fd


def new_key() -> int:
    return secrets.randbits(63) | 1


class Table:
    """The table of this process. Entry 0 describes the table itself, with the nonce as its key."""

    def __init__(self) -> None:
        self.nonce = new_key()
        self.fd = os.memfd_create("monarch-rdma", os.MFD_CLOEXEC)
        size = NUM_ENTRIES * ENTRY_BYTES
        os.ftruncate(self.fd, size)
        self._map = mmap.mmap(self.fd, size)
        self.write(0, TableEntry(self.nonce, LIVE, 0, 0))
        self._end_fd = self.open()

    @property
    def view(self) -> memoryview:
        return memoryview(self._map)

    def write(self, slot: int, entry: TableEntry) -> None:
        ENTRY.pack_into(self._map, slot * ENTRY_BYTES, *entry)

    def read(self, slot: int) -> TableEntry:
        return TableEntry._make(ENTRY.unpack_from(self._map, slot * ENTRY_BYTES))

    def end(self, slot: int, state: int) -> None:
        """Mark in the table that the memory of this slot may not be used any longer."""
        _WORD.pack_into(self._map, slot * ENTRY_BYTES + _STATE, state)

    def open(self) -> int:
        """Open a new descriptor of the table.

        Locks belong to a descriptor, so that threads need different ones.
        """
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)

    @contextlib.contextmanager
    def writing(self, slot: int, deadline: float) -> Iterator[None]:
        """During the ``with`` block, keep the memory registered, and count a write.

        Raises ``TimeoutError`` at the deadline.
        """
        with (
            closing(self.open()) as fd,
            in_use(fd, slot, deadline),
            changing(fd, slot, deadline),
        ):
            yield

    def wait_until_unused(self, slot: int, deadline: float) -> None:
        """Wait until no process writes into the memory. Raises ``TimeoutError`` at the deadline.

        It opens no descriptor, since memory must also be freed when none is available.
        """
        with byte_locks.locked(self._end_fd, _byte(slot, _USE), ALONE, deadline):
            pass

    def close(self) -> None:
        self._map.close()
        os.close(self._end_fd)
        os.close(self.fd)


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    """Yield the descriptor, and close it at the end of the ``with`` block."""
    try:
        yield fd
    finally:
        os.close(fd)


def entry_at(fd: int, slot: int) -> TableEntry:
    return TableEntry._make(ENTRY.unpack(os.pread(fd, ENTRY.size, slot * ENTRY_BYTES)))


def use(fd: int, slot: int, deadline: float) -> None:
    """Keep the memory registered until ``stop_using``.

    Raises ``TimeoutError`` if the lock for that cannot be had before the deadline.
    """
    byte_locks.lock(fd, _byte(slot, _USE), SHARED, deadline)


def stop_using(fd: int, slot: int) -> None:
    """Release what ``use`` locked, and close the descriptor.

    It unlocks explicitly: a child that was forked meanwhile has the descriptor open too, and
    thereby the lock.
    """
    byte_locks.unlock(fd, _byte(slot, _USE))
    os.close(fd)


def in_use(fd: int, slot: int, deadline: float) -> contextlib.AbstractContextManager[None]:
    """Keep the memory registered during the ``with`` block.

    Raises ``TimeoutError`` at the deadline.
    """
    return byte_locks.locked(fd, _byte(slot, _USE), SHARED, deadline)


@contextlib.contextmanager
def changing(fd: int, slot: int, deadline: float) -> Iterator[None]:
    """Count a write that begins and ends with the block, so that consistent readers read again.

    If the block raises, the write is not counted as ended: readers wait until a later write ends.
    """
    begin(fd, slot, deadline)
    yield
    end(fd, slot, deadline)


@contextlib.contextmanager
def counting_alone(fd: int, slot: int) -> Iterator[bool]:
    """Try to take the lock under which writes are counted, without waiting.

    Yields whether it is taken; it is released at the end of the block.
    """
    is_alone = byte_locks.try_lock(fd, _byte(slot, _COUNT), ALONE)
    try:
        yield is_alone
    finally:
        if is_alone:
            byte_locks.unlock(fd, _byte(slot, _COUNT))


def begin(fd: int, slot: int, deadline: float) -> None:
    """Count a write as begun. Earlier writes whose processes are gone are counted as ended."""
    with _counting(fd, slot, deadline):
        entry = entry_at(fd, slot)
        if not entry.is_at_rest and not byte_locks.is_locked_by_others(fd, _byte(slot, _USE)):
            _put(fd, slot, ENDED, entry.begun)
        _put(fd, slot, BEGUN, entry.begun + 1)


def end(fd: int, slot: int, deadline: float) -> None:
    """Count a write as ended."""
    with _counting(fd, slot, deadline + _END_SECONDS):
        _put(fd, slot, ENDED, entry_at(fd, slot).ended + 1)


def _counting(fd: int, slot: int, deadline: float) -> contextlib.AbstractContextManager[None]:
    return byte_locks.locked(fd, _byte(slot, _COUNT), ALONE, deadline)


def _put(fd: int, slot: int, field: int, number: int) -> None:
    os.pwrite(fd, _WORD.pack(number), slot * ENTRY_BYTES + field)


def alone(fd: int, slot: int, deadline: float) -> contextlib.AbstractContextManager[None]:
    """Exclude other atomic operations on this memory during the ``with`` block.

    Raises ``TimeoutError`` at the deadline.
    """
    return byte_locks.locked(fd, _byte(slot, _ATOMIC), ALONE, deadline)


def _byte(slot: int, which: int) -> int:
    return slot * ENTRY_BYTES + which
