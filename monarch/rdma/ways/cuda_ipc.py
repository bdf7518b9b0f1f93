"""GPU memory of other processes on this host, which is mapped here by CUDA's own handles (IPC).

A reader asks the owner once for the handle of a registration, and keeps the mapping until the
registration or its process has ended; the owner does not free the memory before. With the handle
comes the owner's fence, which reads and writes follow: the GPU waits for the work that the owner
had queued at its last message. Devices have names that all processes share, since each process
numbers only the devices that it sees.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from monarch.errors import RemoteMemoryError
from monarch.rdma.memory import table as tables
from monarch.rdma.memory.device_memory import (
    DevicePart,
    copy_across,
    copy_from_host,
    copy_to_host,
    places_in,
)
from monarch.rdma.memory.gpu import GpuMark, gpu
from monarch.rdma.memory.layout import Run, StoragePlace
from monarch.rdma.memory.region import Part, Ranges, RemoteRegion
from monarch.rdma.memory.registry import registry
from monarch.rdma.memory.table import TableEntry
from monarch.rdma.memory.workers import Workers
from monarch.rdma.ways import fences
from monarch.rdma.ways.asking import ask_owner, exchange_by_owner
from monarch.rdma.ways.backend import BackendUnavailable, Entries, WordChange
from monarch.rdma.ways.serving import answers
from monarch.runtime.links.network import Gone
from monarch.wire.address import Uid

_WHAT = "cuda handle"
_LOOK_SECONDS = 1.0
"""How often mappings are checked for registrations that have ended."""


@dataclass(frozen=True)
class _Mapping:
    """GPU memory of another process that is mapped into this one.

    ``base`` is the address at which ``storage`` begins in the other process.
    """

    region: RemoteRegion
    storage: Any
    base: int
    fence: GpuMark


class CudaIpc:
    """The backend for GPU memory that processes of this host own."""

    name = "cuda_ipc"

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        #: Mapped memory by the key of its registration.
        self._mapped: dict[int, _Mapping] = {}
        #: The locks of threads that are mapping a registration, by its key.
        self._opening: dict[int, threading.Lock] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        #: Whether the thread that unmaps ended registrations is running.
        self._looks = False

    def read(self, part: Part | Ranges, into: Sequence[Run], deadline: float) -> Entries:
        source = self._mapped_part(part, deadline)
        return _read(part.region, lambda: copy_to_host(source, into, self._workers))

    def read_across(self, part: Part | Ranges, target: DevicePart, deadline: float) -> Entries:
        """Copy the part to memory of a GPU of this process, without the host's memory.

        Returns the table entries before and after the copy.
        """
        source = self._mapped_part(part, deadline)
        return _read(part.region, lambda: copy_across(source, target))

    def write(self, part: Part, source: Sequence[Run], deadline: float) -> None:
        target = self._mapped_part(part, deadline)
        _write(part.region, lambda: copy_from_host(source, target, self._workers), deadline)

    def write_across(self, part: Part, source: DevicePart, deadline: float) -> None:
        """Copy memory of a GPU of this process to the part, without the host's memory."""
        target = self._mapped_part(part, deadline)
        _write(part.region, lambda: copy_across(source, target), deadline)

    def exchange(
        self, region: RemoteRegion, offset: int, change: WordChange, deadline: float
    ) -> int:
        return exchange_by_owner(region, offset, change, deadline)

    def is_mapped(self, region: RemoteRegion) -> bool:
        """Return whether the region is mapped, so that a copy need not ask the owner."""
        return region.key in self._mapped

    def _mapped_part(self, part: Part | Ranges, deadline: float) -> DevicePart:
        """Return the part as mapped memory of this process."""
        region = part.region
        mapping = self._mapped.get(region.key) or self._open(region, deadline)
        moved = region.address + gpu().address_of(mapping.storage) - mapping.base
        whole = StoragePlace(mapping.storage, moved, region.layout)
        return DevicePart(places_in(whole, part.ranges), (mapping.fence,))

    def _open(self, region: RemoteRegion, deadline: float) -> _Mapping:
        with self._lock:
            opening = self._opening.setdefault(region.key, threading.Lock())
        with opening:  # Of threads that want it at once, only the first asks the owner.
            mapping = self._mapped.get(region.key)
            if mapping is None:
                self._let_go()
                mapping = _map(region, deadline)
                with self._lock:
                    self._mapped[region.key] = mapping
                    self._opening.pop(region.key, None)
                    must_look, self._looks = not self._looks, True
                if must_look:
                    threading.Thread(
                        target=self._look, name="monarch-rdma-ipc", daemon=True
                    ).start()
        return mapping

    def _look(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            self._let_go()
            with self._lock:
                self._looks = bool(self._mapped)
                if not self._looks:
                    return

    def _let_go(self) -> None:
        """Unmap regions whose registrations have ended, so that their owners can free the
        memory."""
        for mapping in list(self._mapped.values()):
            try:
                _entry(mapping.region)
            except RemoteMemoryError:
                self._mapped.pop(mapping.region.key, None)

    def forget(self, uid: Uid, how: Gone) -> None:
        """Unmap the regions of a process that is gone."""
        for mapping in list(self._mapped.values()):
            if mapping.region.owner.uid == uid:
                self._mapped.pop(mapping.region.key, None)

    def close(self) -> None:
        self._closed.set()
        self._mapped.clear()


def _read(region: RemoteRegion, copy: Callable[[], None]) -> Entries:
    before = _entry(region)
    copy()
    return before, _entry(region)


def _write(region: RemoteRegion, copy: Callable[[], None], deadline: float) -> None:
    slot = region.slot
    with tables.closing(_open(region)) as fd, tables.in_use(fd, slot, deadline):
        region.check(tables.entry_at(fd, slot))
        with tables.changing(fd, slot, deadline):
            copy()


def _map(region: RemoteRegion, deadline: float) -> _Mapping:
    if not gpu().is_there():
        raise BackendUnavailable("this process has no GPU")
    answer = ask_owner(region, _WHAT, {}, deadline)
    try:
        devices = list(gpu().devices())
        if answer["device"] not in devices:
            raise BackendUnavailable(
                f"it lies on the GPU {answer['device']}, which this process does not see: leave it "
                "in its CUDA_VISIBLE_DEVICES"
            )
        device = devices.index(answer["device"])
        storage = gpu().open(answer["handle"], device)
        fence = gpu().open_fence(answer["fence"], device)
    except (RuntimeError, OSError) as error:
        raise BackendUnavailable(str(error)) from None
    return _Mapping(region, storage, answer["base"], fence)


def _handle(about: dict[str, Any]) -> dict[str, Any]:
    """As the owner, answer another process's request for the handle of a registration."""
    registration = registry().find_entry(about["slot"], about["key"])
    storage: Any = registration.life.hold()
    try:
        device = gpu().device_of(storage)
        return {
            "handle": gpu().share(storage),
            "base": gpu().address_of(storage),
            "device": gpu().devices()[device],
            "fence": fences.handle_of(device),
        }
    except RuntimeError as error:
        raise BackendUnavailable(f"CUDA cannot share it: {error}") from None


answers[_WHAT] = _handle


def _open(region: RemoteRegion) -> int:
    try:
        return region.table.open()
    except OSError as error:
        raise region.orphaned(f"its process has ended ({error.strerror})") from None


def _entry(region: RemoteRegion) -> TableEntry:
    with tables.closing(_open(region)) as fd:
        entry = tables.entry_at(fd, region.slot)
    region.check(entry)
    return entry
