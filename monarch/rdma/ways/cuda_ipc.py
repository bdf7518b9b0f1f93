"""GPU memory of other processes on this host, which is mapped here by CUDA's own handles (IPC).

A reader asks the owner once for the handle of a registration, and keeps the mapping until the
registration or its process has ended; the owner does not free the memory before. With the handle
comes the owner's fence, which reads and writes follow: the GPU waits for the work that the owner
had queued at its last message. Devices are named by names that all processes share, since each
numbers the devices that it sees.
"""

from __future__ import annotations

import os
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
from monarch.rdma.ways.asking import add_by_owner, ask_owner, swap_by_owner
from monarch.rdma.ways.backend import BackendUnavailable
from monarch.rdma.ways.serving import answers
from monarch.runtime.links.network import Gone
from monarch.wire.address import Uid

_WHAT = "cuda handle"
_LOOK_SECONDS = 1.0
"""How often mappings are looked through for those whose registration has ended."""


@dataclass(frozen=True)
class _Mapping:
    """A mapped storage of another process; ``base`` is its address there."""

    region: RemoteRegion
    storage: Any
    base: int
    fence: GpuMark


class CudaIpc:
    """The backend for GPU memory that processes of this host own."""

    name = "cuda_ipc"

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._mapped: dict[int, _Mapping] = {}
        self._opening: dict[int, threading.Lock] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._looks = False

    def read(
        self, part: Part | Ranges, into: Sequence[Run], deadline: float
    ) -> tuple[TableEntry, TableEntry]:
        there = self._part(part, deadline)
        return _read(part.region, lambda: copy_to_host(there, into, self._workers))

    def read_across(
        self, part: Part | Ranges, target: DevicePart, deadline: float
    ) -> tuple[TableEntry, TableEntry]:
        there = self._part(part, deadline)
        return _read(part.region, lambda: copy_across(there, target))

    def write(self, part: Part, source: Sequence[Run], deadline: float) -> None:
        there = self._part(part, deadline)
        _write(part.region, lambda: copy_from_host(source, there, self._workers), deadline)

    def write_across(self, part: Part, source: DevicePart, deadline: float) -> None:
        there = self._part(part, deadline)
        _write(part.region, lambda: copy_across(source, there), deadline)

    def fetch_add(self, region: RemoteRegion, offset: int, amount: int, deadline: float) -> int:
        return add_by_owner(region, offset, amount, deadline)

    def compare_and_swap(
        self, region: RemoteRegion, offset: int, expected: int, new: int, deadline: float
    ) -> int:
        return swap_by_owner(region, offset, expected, new, deadline)

    def is_mapped(self, region: RemoteRegion) -> bool:
        """Whether the region is mapped already, so that the owner need not be asked."""
        return region.key in self._mapped

    def _part(self, part: Part | Ranges, deadline: float) -> DevicePart:
        """Return the part as mapped memory of this process."""
        region = part.region
        mapping = self._mapped.get(region.key) or self._open(region, deadline)
        moved = region.address + gpu().address_of(mapping.storage) - mapping.base
        whole = StoragePlace(mapping.storage, moved, region.layout)
        return DevicePart(places_in(whole, part.ranges), (mapping.fence,))

    def _open(self, region: RemoteRegion, deadline: float) -> _Mapping:
        with self._lock:
            opening = self._opening.setdefault(region.key, threading.Lock())
        with opening:  # Of threads that want it at once, one asks.
            found = self._mapped.get(region.key)
            if found is None:
                self._let_go()
                found = _map(region, deadline)
                with self._lock:
                    self._mapped[region.key] = found
                    self._opening.pop(region.key, None)
                    must_look, self._looks = not self._looks, True
                if must_look:
                    threading.Thread(
                        target=self._look, name="monarch-rdma-ipc", daemon=True
                    ).start()
        return found

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
        for one in list(self._mapped.values()):
            try:
                _entry(one.region)
            except RemoteMemoryError:
                self._mapped.pop(one.region.key, None)

    def forget(self, uid: Uid, how: Gone) -> None:
        """Unmap the regions of a process that is gone."""
        for one in list(self._mapped.values()):
            if one.region.owner.uid == uid:
                self._mapped.pop(one.region.key, None)

    def close(self) -> None:
        self._closed.set()
        self._mapped.clear()


def _read(region: RemoteRegion, copy: Callable[[], None]) -> tuple[TableEntry, TableEntry]:
    before = _entry(region)
    copy()
    return before, _entry(region)


def _write(region: RemoteRegion, copy: Callable[[], None], deadline: float) -> None:
    fd = _open(region)
    try:
        with tables.in_use(fd, region.slot, deadline):
            region.check(tables.entry_at(fd, region.slot))
            with tables.changing(fd, region.slot, deadline):
                copy()
    finally:
        os.close(fd)


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
    """Answer a request for a registration's handle, as its owner."""
    found = registry().find_entry(about["slot"], about["key"])
    storage: Any = found.life.hold()
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
    fd = _open(region)
    try:
        entry = tables.entry_at(fd, region.slot)
    finally:
        os.close(fd)
    region.check(entry)
    return entry
