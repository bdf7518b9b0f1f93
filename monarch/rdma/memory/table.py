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

from monarch.rdma.memory.byte_locks import (
    ALONE,
    SHARED,
    is_locked_by_others,
    lock,
    try_lock,
    unlock,
)

ENTRY = struct.Struct("=QQQQ")
ENTRY_BYTES = 64
NUM_ENTRIES = 2**18

UNUSED, LIVE, DROPPED, FREED = range(4)

_USE, _COUNT, _ATOMIC = range(3)  # which byte of an entry a lock is on
_MORE_SECONDS = 5.0
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
        """Whether no write into the memory is in progress, as far as writers count theirs."""
        return self.begun == self.ended


class TablePlace(NamedTuple):
    """Where another process finds the table of process ``pid``; ``nonce`` proves that it is this
    one."""

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
        """Open a new descriptor of the table, so that threads' locks are kept apart."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)

    def wait_until_unused(self, slot: int, deadline: float) -> None:
        """Wait for a process that is writing into the memory. Raises ``TimeoutError``.

        It opens no descriptor, since memory must also be freed when none is available.
        """
        lock(self._end_fd, _place(slot, _USE), ALONE, deadline)
        unlock(self._end_fd, _place(slot, _USE))

    def close(self) -> None:
        self._map.close()
        os.close(self._end_fd)
        os.close(self.fd)


def entry_at(fd: int, slot: int) -> TableEntry:
    return TableEntry._make(ENTRY.unpack(os.pread(fd, ENTRY.size, slot * ENTRY_BYTES)))


def use(fd: int, slot: int, deadline: float) -> None:
    """Keep the memory registered until ``stop_using``. Raises ``TimeoutError``."""
    lock(fd, _place(slot, _USE), SHARED, deadline)


def stop_using(fd: int, slot: int) -> None:
    """Release what ``use`` locked, and close the descriptor.

    A child that was forked in between has the same open file: closing alone would leave it the
    lock.
    """
    unlock(fd, _place(slot, _USE))
    os.close(fd)


@contextlib.contextmanager
def in_use(fd: int, slot: int, deadline: float) -> Iterator[None]:
    """Keep the memory registered within. Raises ``TimeoutError``."""
    lock(fd, _place(slot, _USE), SHARED, deadline)
    try:
        yield
    finally:
        unlock(fd, _place(slot, _USE))


def is_in_use_by_others(fd: int, slot: int) -> bool:
    """Whether a process is writing into the memory through another descriptor."""
    return is_locked_by_others(fd, _place(slot, _USE))


@contextlib.contextmanager
def changing(fd: int, slot: int, deadline: float) -> Iterator[None]:
    """Count a write as begun and ended, so that consistent readers read again after it.

    A write that fails is not counted as ended: readers wait until the next write ends.
    """
    begin(fd, slot, deadline)
    yield
    end(fd, slot, deadline)


@contextlib.contextmanager
def counting_alone(fd: int, slot: int) -> Iterator[bool]:
    """Try to take the lock under which writes are counted, without waiting; yield whether it is
    taken."""
    is_alone = try_lock(fd, _place(slot, _COUNT), ALONE)
    try:
        yield is_alone
    finally:
        if is_alone:
            unlock(fd, _place(slot, _COUNT))


def begin(fd: int, slot: int, deadline: float) -> None:
    """Count a write as begun. Earlier writes whose processes are gone are counted as ended."""
    with _counting(fd, slot, deadline):
        entry = entry_at(fd, slot)
        if not entry.is_at_rest and not is_in_use_by_others(fd, slot):
            _put(fd, slot, ENDED, entry.begun)
        _put(fd, slot, BEGUN, entry.begun + 1)


def end(fd: int, slot: int, deadline: float) -> None:
    """Count a write as ended."""
    with _counting(fd, slot, deadline + _MORE_SECONDS):
        _put(fd, slot, ENDED, entry_at(fd, slot).ended + 1)


@contextlib.contextmanager
def _counting(fd: int, slot: int, deadline: float) -> Iterator[None]:
    lock(fd, _place(slot, _COUNT), ALONE, deadline)
    try:
        yield
    finally:
        unlock(fd, _place(slot, _COUNT))


def _put(fd: int, slot: int, field: int, number: int) -> None:
    os.pwrite(fd, _WORD.pack(number), slot * ENTRY_BYTES + field)


@contextlib.contextmanager
def alone(fd: int, slot: int, deadline: float) -> Iterator[None]:
    """Exclude other atomic operations on this memory within."""
    lock(fd, _place(slot, _ATOMIC), ALONE, deadline)
    try:
        yield
    finally:
        unlock(fd, _place(slot, _ATOMIC))


def _place(slot: int, which: int) -> int:
    return slot * ENTRY_BYTES + which
