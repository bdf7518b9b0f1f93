"""The backend for other processes of this host: the system calls process_vm_readv and writev.

The kernel copies from one process straight into the other, in the order of the given ranges. So a
single call reads the table entry, the bytes, and the entry again.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence

from monarch.net.machine import machine_id
from monarch.rdma.memory import table as tables
from monarch.rdma.memory.layout import Run, RunReader, batches
from monarch.rdma.memory.region import Part, Ranges, RemoteRegion
from monarch.rdma.memory.table import ENTRY, ENTRY_BYTES, TableEntry, TablePlace
from monarch.rdma.ways.backend import BackendUnavailable, Entries, WordChange
from monarch.runtime.ends.process_start import process_start

_MOST_RUNS = 1000  # The kernel takes 1,024.
_MOST_BYTES = 256 * 2**20
_LOCKED_BYTES = 64 * 2**20  # An owner that gives up memory waits for one such piece at most.
_QUICK_BYTES = 8 * 2**20  # Another write waits for one of so many.
_WORD = struct.Struct("=Q")
_UNMAPPED = ": its owner has to drop the buffer before it unmaps or protects the memory"
_OWN_LACK = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
_NAMES = ("process_vm_readv", "process_vm_writev")


def _call(name: str) -> Callable[..., int] | None:
    function = getattr(_libc, name, None)
    if function is not None:
        runs = (ctypes.c_void_p, ctypes.c_ulong)
        function.restype = ctypes.c_ssize_t
        function.argtypes = (ctypes.c_int, *runs, *runs, ctypes.c_ulong)
    return function


_readv, _writev = map(_call, _NAMES)


class ProcessVm:
    """The way of ``RDMABuffer`` to memory of other processes of this user on this host.

    It uses the system calls process_vm_readv and process_vm_writev.
    """

    name = "process_vm"

    def __init__(self) -> None:
        #: Why this process may not read an owner's memory, by the owner's table; "" if it may.
        self._probed: dict[TablePlace, str] = {}

    def read(self, part: Part | Ranges, into: Sequence[Run], deadline: float) -> Entries:
        region = part.region
        self._check_way(region)
        is_plain = isinstance(part, Part) and region.layout.is_contiguous
        if is_plain and len(into) == 1 and part.nbytes <= _MOST_BYTES:
            return self._read(region, list(part.runs()), list(into), part.nbytes)
        filled = RunReader(into)
        first = last = None
        for runs, num_bytes in batches(part.runs(), _MOST_RUNS, _MOST_BYTES):
            _check_time(deadline)
            for ours, theirs, size in _matched(runs, filled.take(num_bytes)):
                before, last = self._read(region, theirs, ours, size)
                first = first or before
        assert first is not None
        assert last is not None
        return first, last

    def _read(
        self, region: RemoteRegion, theirs: list[Run], ours: list[Run], num_bytes: int
    ) -> Entries:
        entry = region.table.address + region.slot * ENTRY_BYTES, ENTRY.size
        entries = ctypes.create_string_buffer(2 * ENTRY.size)
        address, size = ctypes.addressof(entries), ENTRY.size
        local = _vector([(address, size), *ours, (address + size, size)])
        remote = _vector([entry, *theirs, entry])
        assert _readv is not None
        num_read = _readv(region.table.pid, local, len(local), remote, len(remote), 0)
        if num_read < size:
            raise self._lost(region, _error(num_read))
        before = TableEntry._make(ENTRY.unpack_from(entries, 0))
        region.check(before)
        if num_read != num_bytes + 2 * size:
            raise region.error(f"its memory is not mapped any longer{_UNMAPPED}")
        after = TableEntry._make(ENTRY.unpack_from(entries, size))
        region.check(after)
        return before, after

    def write(self, part: Part, source: Sequence[Run], deadline: float) -> None:
        region = part.region
        self._check_way(region)
        with self._table(region) as fd:
            if part.nbytes <= _QUICK_BYTES and self._write_at_once(fd, part, source, deadline):
                return
            unwritten = RunReader(source)
            # One version, whatever its size; an owner that frees it waits for one piece only.
            with tables.in_use(fd, region.slot, deadline):
                region.check(tables.entry_at(fd, region.slot))
                tables.begin(fd, region.slot, deadline)
            for piece in part.cut(_LOCKED_BYTES):
                _check_time(deadline)
                with tables.in_use(fd, region.slot, deadline):
                    region.check(tables.entry_at(fd, region.slot))
                    for runs, num_bytes in batches(piece.runs(), _MOST_RUNS, _LOCKED_BYTES):
                        for ours, theirs, size in _matched(runs, unwritten.take(num_bytes)):
                            self._write(region, theirs, ours, size)
            tables.end(fd, region.slot, deadline)

    def _write_at_once(self, fd: int, part: Part, source: Sequence[Run], deadline: float) -> bool:
        """Write with one system call that also counts the write as begun and ended.

        Returns False, with nothing written, if another write is in progress or there are too many
        runs.
        """
        region = part.region
        address = region.table.address + region.slot * ENTRY_BYTES
        theirs = list(part.runs())
        if len(theirs) > _MOST_RUNS or len(source) > _MOST_RUNS:
            return False
        with (
            tables.in_use(fd, region.slot, deadline),
            tables.counting_alone(fd, region.slot) as is_alone,
        ):
            entry = tables.entry_at(fd, region.slot)
            region.check(entry)
            if not is_alone or not entry.is_at_rest:
                return False
            number = ctypes.create_string_buffer(_WORD.pack(entry.begun + 1), 8)
            count = ctypes.addressof(number), 8
            theirs = [(address + tables.BEGUN, 8), *theirs, (address + tables.ENDED, 8)]
            self._write(region, theirs, [count, *source, count], part.nbytes + 16)
            return True

    def _write(
        self, region: RemoteRegion, theirs: list[Run], ours: list[Run], num_bytes: int
    ) -> None:
        local, remote = _vector(ours), _vector(theirs)
        assert _writev is not None
        num_written = _writev(region.table.pid, local, len(local), remote, len(remote), 0)
        if num_written < 0:
            raise self._lost(region, _error(num_written))
        if num_written != num_bytes:
            raise region.error(f"its memory is not mapped, or not writable, any longer{_UNMAPPED}")

    def exchange(
        self, region: RemoteRegion, offset: int, change: WordChange, deadline: float
    ) -> int:
        self._check_way(region)
        word = ctypes.create_string_buffer(8)
        ours = [(ctypes.addressof(word), 8)]
        theirs = list(region.runs(offset, offset + 8))
        with self._table(region) as fd, tables.in_use(fd, region.slot, deadline):
            region.check(tables.entry_at(fd, region.slot))
            with tables.alone(fd, region.slot, deadline):
                self._read(region, theirs, ours, 8)
                old = int(_WORD.unpack(word.raw)[0])
                new = change.of(old)
                if new is not None:
                    _WORD.pack_into(word, 0, new)
                    with tables.changing(fd, region.slot, deadline):
                        self._write(region, theirs, ours, 8)
        return old

    @contextlib.contextmanager
    def _table(self, region: RemoteRegion) -> Iterator[int]:
        try:
            fd = region.table.open()
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                raise BackendUnavailable(f"its table may not be opened: {error.strerror}") from None
            if error.errno in _OWN_LACK:
                raise  # Says nothing of the owner.
            raise self._lost(region, error.errno or 0) from None
        with tables.closing(fd):
            yield fd

    def _check_way(self, region: RemoteRegion) -> None:
        """Raise ``BackendUnavailable`` if this process may not read the owner's memory.

        The result is cached for the owner's table, not for its pid, which another process may get
        later.
        """
        refused = self._probed.get(region.table)
        if refused is None:
            refused = self._probed[region.table] = self._probe(region)
        if refused:
            raise BackendUnavailable(refused)

    def _probe(self, region: RemoteRegion) -> str:
        """Return why this backend cannot reach the region; "" if it can."""
        if not region.is_on_cpu:
            return "it is memory of a GPU"
        if region.owner.machine != machine_id():
            return "the owner is on another host"
        if _readv is None or _writev is None:
            return "this system has no process_vm_readv"
        word = ctypes.create_string_buffer(8)
        local, remote = _vector([(ctypes.addressof(word), 8)]), _vector([(region.table.address, 8)])
        num_read = _readv(region.table.pid, local, 1, remote, 1, 0)
        number = _error(num_read)
        if number in (errno.EPERM, errno.ENOSYS, errno.EACCES):
            return f"the kernel refuses it: {os.strerror(number)}"
        if num_read != 8 or _WORD.unpack(word.raw)[0] != region.table.nonce:
            raise self._lost(region, number)
        return ""

    def _lost(self, region: RemoteRegion, number: int) -> Exception:
        """Return the error for a system call that failed with the ``errno`` ``number``.

        0 means that the call succeeded, but read another process's data.
        """
        self._probed.pop(region.table, None)
        started = process_start(region.table.pid)
        # A killed process that is not yet reaped still has a start time, but no memory.
        if number == errno.ESRCH or started is None or started != region.table.started:
            return region.orphaned(f"its process, pid {region.table.pid}, has ended")
        if number in (errno.EPERM, errno.EACCES):
            return BackendUnavailable(f"the kernel refuses it: {os.strerror(number)}")
        if not number:
            return region.error(
                "its process has given up all that it had registered. Have it make a new buffer"
            )
        return region.error(
            f"its memory cannot be reached ({os.strerror(number)}). Try again, or go by TCP with "
            "configure(rdma_same_host=False)"
        )


def _error(result: int) -> int:
    """Return the ``errno`` of a system call that returned ``result``; 0 if it succeeded.

    A successful call leaves an older ``errno`` in place.
    """
    return ctypes.get_errno() if result < 0 else 0


def _vector(runs: Sequence[Run]) -> ctypes.Array[_IoVec]:
    return (_IoVec * len(runs))(*runs)  # type: ignore[misc]  # a structure takes a tuple


def _matched(theirs: list[Run], ours: list[Run]) -> Iterator[tuple[list[Run], list[Run], int]]:
    """Split a copy into pieces with as many runs of ``ours`` as the kernel allows in one call.

    Yields, for each piece, its runs of ``ours``, its runs of ``theirs``, and its number of bytes.
    """
    if len(ours) <= _MOST_RUNS:
        yield ours, theirs, sum(length for _, length in theirs)
        return
    remote = RunReader(theirs)
    for local, num_bytes in batches(ours, _MOST_RUNS, _MOST_BYTES):
        yield local, remote.take(num_bytes), num_bytes


def _check_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError("it takes longer than its timeout: give a longer one, timeout=seconds")


def is_supported() -> bool:
    """Return whether this system has ``process_vm_readv`` and ``process_vm_writev``."""
    return _readv is not None and _writev is not None
