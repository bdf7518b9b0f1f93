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
from monarch.rdma.ways.backend import BackendUnavailable
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
    found = getattr(_libc, name, None)
    if found is not None:
        found.restype = ctypes.c_ssize_t
        found.argtypes = [
            ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong,
            ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong,
        ]  # fmt: skip
    return found


_readv, _writev = map(_call, _NAMES)


class ProcessVm:
    """The backend for processes of this user on this host."""

    name = "process_vm"

    def __init__(self) -> None:
        self._probed: dict[TablePlace, str] = {}

    def read(
        self, part: Part | Ranges, into: Sequence[Run], deadline: float
    ) -> tuple[TableEntry, TableEntry]:
        region = part.region
        self._check_way(region)
        is_plain = isinstance(part, Part) and region.layout.is_contiguous
        if is_plain and len(into) == 1 and part.nbytes <= _MOST_BYTES:
            return self._read(region, list(part.runs()), list(into), part.nbytes)
        filled = RunReader(into)
        first = last = None
        for runs, num_bytes in batches(part.runs(), _MOST_RUNS, _MOST_BYTES):
            _check_time(deadline)
            for here, there, size in _matched(runs, filled.take(num_bytes)):
                before, last = self._read(region, there, here, size)
                first = first or before
        assert first is not None
        assert last is not None
        return first, last

    def _read(
        self, region: RemoteRegion, there: list[Run], here: list[Run], num_bytes: int
    ) -> tuple[TableEntry, TableEntry]:
        place = region.table.address + region.slot * ENTRY_BYTES
        entries = ctypes.create_string_buffer(2 * ENTRY.size)
        address = ctypes.addressof(entries)
        size = ENTRY.size
        theirs = _vector([(place, size), *there, (place, size)])
        ours = _vector([(address, size), *here, (address + size, size)])
        assert _readv is not None
        got = _readv(region.table.pid, ours, len(ours), theirs, len(theirs), 0)
        if got < size:
            raise self._lost(region, _error(got))
        before = TableEntry._make(ENTRY.unpack_from(entries, 0))
        region.check(before)
        if got != num_bytes + 2 * size:
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
            given = RunReader(source)
            # One version, whatever its size; an owner that frees it waits for one piece only.
            with tables.in_use(fd, region.slot, deadline):
                region.check(tables.entry_at(fd, region.slot))
                tables.begin(fd, region.slot, deadline)
            for piece in part.cut(_LOCKED_BYTES):
                _check_time(deadline)
                with tables.in_use(fd, region.slot, deadline):
                    region.check(tables.entry_at(fd, region.slot))
                    for runs, num_bytes in batches(piece.runs(), _MOST_RUNS, _LOCKED_BYTES):
                        for here, there, size in _matched(runs, given.take(num_bytes)):
                            self._write(region, there, here, size)
            tables.end(fd, region.slot, deadline)

    def _write_at_once(self, fd: int, part: Part, source: Sequence[Run], deadline: float) -> bool:
        """Write with one system call that also counts the write as begun and ended.

        Returns False, with nothing written, if another write is in progress or there are too many
        runs.
        """
        region = part.region
        place = region.table.address + region.slot * ENTRY_BYTES
        there = list(part.runs())
        if len(there) > _MOST_RUNS or len(source) > _MOST_RUNS:
            return False
        with (
            tables.in_use(fd, region.slot, deadline),
            tables.counting_alone(fd, region.slot) as is_alone,
        ):
            entry = tables.entry_at(fd, region.slot)
            region.check(entry)
            if not is_alone or not entry.is_at_rest:
                return False
            count = ctypes.create_string_buffer(_WORD.pack(entry.begun + 1), 8)
            one = ctypes.addressof(count), 8
            self._write(
                region,
                [(place + tables.BEGUN, 8), *there, (place + tables.ENDED, 8)],
                [one, *source, one],
                part.nbytes + 16,
            )
            return True

    def _write(
        self, region: RemoteRegion, there: list[Run], here: list[Run], num_bytes: int
    ) -> None:
        theirs, ours = _vector(there), _vector(here)
        assert _writev is not None
        got = _writev(region.table.pid, ours, len(ours), theirs, len(theirs), 0)
        if got < 0:
            raise self._lost(region, _error(got))
        if got != num_bytes:
            raise region.error(f"its memory is not mapped, or not writable, any longer{_UNMAPPED}")

    def fetch_add(self, region: RemoteRegion, offset: int, amount: int, deadline: float) -> int:
        return self._exchange(region, offset, lambda old: (old + amount) % 2**64, deadline)

    def compare_and_swap(
        self, region: RemoteRegion, offset: int, expected: int, new: int, deadline: float
    ) -> int:
        return self._exchange(
            region, offset, lambda old: new if old == expected else None, deadline
        )

    def _exchange(
        self,
        region: RemoteRegion,
        offset: int,
        change: Callable[[int], int | None],
        deadline: float,
    ) -> int:
        self._check_way(region)
        word = ctypes.create_string_buffer(8)
        here = [(ctypes.addressof(word), 8)]
        there = list(region.runs(offset, offset + 8))
        with self._table(region) as fd, tables.in_use(fd, region.slot, deadline):
            region.check(tables.entry_at(fd, region.slot))
            with tables.alone(fd, region.slot, deadline):
                self._read(region, there, here, 8)
                (old,) = _WORD.unpack(word.raw)
                new = change(old)
                if new is not None:
                    _WORD.pack_into(word, 0, new)
                    with tables.changing(fd, region.slot, deadline):
                        self._write(region, there, here, 8)
        return int(old)

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
        try:
            yield fd
        finally:
            os.close(fd)

    def _check_way(self, region: RemoteRegion) -> None:
        """Raise ``BackendUnavailable`` if this process may not read the owner's memory.

        The result is kept by the owner's table, since pids are reused.
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
        ours, theirs = (
            _vector([(ctypes.addressof(word), 8)]), _vector([(region.table.address, 8)])
        )  # fmt: skip
        got = _readv(region.table.pid, ours, 1, theirs, 1, 0)
        number = _error(got)
        if number in (errno.EPERM, errno.ENOSYS, errno.EACCES):
            return f"the kernel refuses it: {os.strerror(number)}"
        if got != 8 or _WORD.unpack(word.raw)[0] != region.table.nonce:
            raise self._lost(region, number)
        return ""

    def _lost(self, region: RemoteRegion, number: int) -> Exception:
        """Return the error for a call that failed with ``errno`` ``number``, or 0 if other data was
        found."""
        self._probed.pop(region.table, None)
        started = process_start(region.table.pid)
        # A killed process that is not yet reaped still has a start time, but no memory.
        if number == errno.ESRCH or started is None or started != region.table.started:
            return region.orphaned(f"its process, pid {region.table.pid}, has ended")
        if number in (errno.EPERM, errno.EACCES):
            return BackendUnavailable(f"the kernel refuses it: {os.strerror(number)}")
        if not number:
            why = "its process has given up all that it had registered. Have it make a new buffer"
            return region.error(why)
        return region.error(
            f"its memory cannot be reached ({os.strerror(number)}). Try again, or go by TCP with "
            "configure(rdma_same_host=False)"
        )


def _error(got: int) -> int:
    """Return the ``errno`` of a system call that returned ``got``; 0 if it succeeded.

    A successful call leaves an older ``errno`` in place.
    """
    return ctypes.get_errno() if got < 0 else 0


def _vector(runs: Sequence[Run]) -> ctypes.Array[_IoVec]:
    return (_IoVec * len(runs))(*runs)  # type: ignore[misc]  # a structure takes a tuple


def _matched(there: list[Run], here: list[Run]) -> Iterator[tuple[list[Run], list[Run], int]]:
    """Yield pairs of local and remote runs with equally many bytes, within the kernel's limit of
    runs."""
    if len(here) <= _MOST_RUNS:
        yield here, there, sum(length for _, length in there)
        return
    theirs = RunReader(there)
    for some, num_bytes in batches(here, _MOST_RUNS, _MOST_BYTES):
        yield some, theirs.take(num_bytes), num_bytes


def _check_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError("it takes longer than its timeout: give a longer one, timeout=seconds")


def is_supported() -> bool:
    """Whether this system has the two system calls."""
    return _readv is not None and _writev is not None
