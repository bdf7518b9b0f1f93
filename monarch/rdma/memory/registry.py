"""The registry of this process: the memory that others may read and write.

A registration ends when it is dropped, or before its memory is freed. The table is updated first,
and then writers that are still at work are waited for. So no process reads or writes memory that is
used for something else later.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from monarch.errors import RemoteMemoryError
from monarch.rdma.memory.memory import Life, LocalMemory
from monarch.rdma.memory.region import FREED_MEMORY, RemoteRegion, why_not
from monarch.rdma.memory.table import (
    DROPPED,
    FREED,
    LIVE,
    NUM_ENTRIES,
    Table,
    TableEntry,
    TablePlace,
    new_key,
)
from monarch.runtime.ends.process_start import process_start
from monarch.wire.address import ProcAddress

_log = logging.getLogger("monarch.rdma")

_WRITER_SECONDS = 5.0
"""How long the end of a registration waits for writers, which lock piece by piece."""

_REST_ENTRIES = 1024
"""An ended entry is reused only after so many others, so that readers learn how it ended."""

_FEW = 32

_PR_SET_PTRACER = 0x59616D61
_PTRACER_ANY = ctypes.c_ulong(-1)


class Registration:
    """Memory of this process that is registered, in a slot of the table."""

    def __init__(self, slot: int, key: int, memory: LocalMemory, freed: Callable[[], None]) -> None:
        self.slot = slot
        self.key = key
        self.address = memory.address
        self.layout = memory.layout
        self.device = memory.device
        self.life = Life(memory, freed)
        #: Releases resources of backends when it ends, such as keys of network cards.
        self.at_end: list[Callable[[], None]] = []


class Registrations:
    """The memory that this process has registered, for other processes to read and write.

    Others look a registration up in its table. Any thread may call the methods.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.table = Table()
        self.place = TablePlace(
            self.pid,
            process_start(self.pid) or 0,
            self.table.fd,
            ctypes.addressof(ctypes.c_char.from_buffer(self.table.view)),
            self.table.nonce,
        )
        self._lock = threading.Lock()
        self._live: dict[int, Registration] = {}  # By slot.
        #: The first slot that was never used.
        self._fresh = 1
        #: The slots whose registrations have ended, the latest last.
        self._resting: deque[int] = deque()
        #: With more registrations than this, the next one looks for memory that nobody uses.
        self._num_before_sweep = _FEW
        _let_others_in()

    def __len__(self) -> int:
        return len(self._live)

    def register(self, memory: LocalMemory, owner: ProcAddress, owner_name: str) -> RemoteRegion:
        """Register memory and return its description. Raises ``MemoryError`` if the table is
        full."""
        if len(self._live) > self._num_before_sweep:
            self.sweep()
            self._num_before_sweep = 2 * len(self._live) + _FEW
        with self._lock:
            slot = self._take_slot()
        key = new_key()
        self._live[slot] = Registration(slot, key, memory, lambda: self._freed(slot, key))
        self.table.write(slot, TableEntry(key, LIVE, 0, 0))
        return RemoteRegion(
            owner=owner,
            owner_name=owner_name,
            table=self.place,
            slot=slot,
            key=key,
            address=memory.address,
            layout=memory.layout,
            is_readonly=memory.is_readonly,
            device=memory.device,
        )

    def _take_slot(self) -> int:
        if self._fresh < NUM_ENTRIES and len(self._resting) < _REST_ENTRIES:
            self._fresh += 1
            return self._fresh - 1
        if not self._resting:
            raise MemoryError(f"{NUM_ENTRIES - 1} buffers are registered: drop some of them")
        return self._resting.popleft()

    def find(self, region: RemoteRegion) -> Registration:
        """Return the registration of a region. Raises ``RemoteMemoryError`` if it has ended."""
        try:
            return self.find_entry(region.slot, region.key)
        except RemoteMemoryError as error:
            raise region.error(error.reason) from None

    def find_entry(self, slot: int, key: int) -> Registration:
        """Return the registration with the key ``key`` in slot ``slot``.

        Raises ``RemoteMemoryError``, which names neither buffer nor owner, if the registration has
        ended.
        """
        registration = self._live.get(slot)
        if registration is None or registration.key != key:
            raise RemoteMemoryError("", "", why_not(self.table.read(slot), key))
        return registration

    def hold(self, region: RemoteRegion) -> object:
        """Return an object that keeps the region's memory in its place while the object exists.

        Raises ``RemoteMemoryError`` if the memory is gone.
        """
        memory = self.find(region).life.hold()
        if memory is None:
            raise region.error(FREED_MEMORY)
        return memory

    def drop(self, slot: int, key: int) -> bool:
        """End a registration, after waiting for processes that write into its memory.

        Returns whether the slot had the registration ``key``.
        """
        return self._end(slot, key, DROPPED)

    def _freed(self, slot: int, key: int) -> None:
        # Runs wherever garbage is collected, before the memory is freed: it takes no lock of ours.
        if os.getpid() == self.pid:
            self._end(slot, key, FREED)

    def _end(self, slot: int, key: int, state: int) -> bool:
        registration = self._live.get(slot)
        if registration is None or registration.key != key:
            return False
        if self._live.pop(slot, None) is not registration:
            return False  # Another thread ends it.
        self.table.end(slot, state)
        for release in registration.at_end:
            release()
        try:
            self.table.wait_until_unused(slot, time.monotonic() + _WRITER_SECONDS)
        except TimeoutError:
            _log.warning("a process that writes into a buffer does not come to an end of it")
        registration.life.end()
        self._resting.append(slot)
        return True

    def sweep(self) -> None:
        """End the registrations of memory to which nothing else in this process refers."""
        for registration in list(self._live.values()):
            self.look_at(registration.slot, registration.key)

    def look_at(self, slot: int, key: int) -> None:
        """End the registration if nothing in this process refers to its memory any longer.

        ``key`` is its key: if the slot has another registration by now, nothing happens.
        """
        registration = self._live.get(slot)
        if registration is not None and registration.key == key and registration.life.has_ended():
            self._end(slot, key, FREED)

    def close(self) -> None:
        for registration in list(self._live.values()):
            self.drop(registration.slot, registration.key)
        self.table.close()


_registry: Registrations | None = None
_making = threading.Lock()


def registry() -> Registrations:
    """Return the ``Registrations`` of this process, made at the first call."""
    global _registry
    if _registry is None:
        with _making:
            if _registry is None:
                _registry = Registrations()
    return _registry


def is_registry_made() -> bool:
    return _registry is not None


def close_registry() -> None:
    """End all registrations of this process, when it leaves the network."""
    global _registry
    with _making:
        closed, _registry = _registry, None
    if closed is not None:
        closed.close()


def _forget() -> None:
    """Forget the registrations in a forked child.

    They are the parent's: other processes send their requests to the parent.
    """
    global _registry, _making
    _registry = None
    _making = threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _let_others_in() -> None:
    """Allow all processes of this user to read this process's memory.

    The kernel's module Yama may allow it only to parent processes.
    """
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", encoding="ascii") as file:
            scope = file.read().strip()
    except OSError:
        return
    if scope == "1":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PTRACER, _PTRACER_ANY, 0, 0, 0)
