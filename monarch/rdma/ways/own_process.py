"""The backend for memory of this process itself: a plain copy."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from monarch.errors import RemoteMemoryError
from monarch.rdma.memory import table as tables
from monarch.rdma.memory.device_memory import (
    DevicePart,
    copy_across,
    copy_from_host,
    copy_to_host,
    on_host,
    registered_part,
)
from monarch.rdma.memory.layout import Run
from monarch.rdma.memory.memory import copy_runs
from monarch.rdma.memory.region import FREED_MEMORY, Part, Ranges, RemoteRegion
from monarch.rdma.memory.registry import Registration, Registrations, is_registry_made, registry
from monarch.rdma.memory.workers import Workers
from monarch.rdma.ways.backend import BackendUnavailable, Entries, WordChange
from monarch.rdma.ways.streams import view_at

_WORD = struct.Struct("=Q")


def is_own(region: RemoteRegion) -> bool:
    """Whether this process has registered the region."""
    return is_registry_made() and registry().table.nonce == region.table.nonce


class OwnProcess:
    """The backend for memory that this process registered; it is kept in place during a copy."""

    name = "local"

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def read(self, part: Part | Ranges, into: Sequence[Run], deadline: float) -> Entries:
        def copy(registration: Registration, memory: object) -> None:
            if part.region.is_on_cpu:
                copy_runs(list(part.runs()), into)
            else:
                source = registered_part(registration, memory, part.ranges)
                copy_to_host(source, into, self._workers)

        return self._read(part.region, copy)

    def read_across(self, part: Part | Ranges, target: DevicePart, deadline: float) -> Entries:
        """Copy the part to memory of a GPU of this process, without the host's memory.

        Returns the table entries before and after the copy.
        """

        def copy(registration: Registration, memory: object) -> None:
            copy_across(registered_part(registration, memory, part.ranges), target)

        return self._read(part.region, copy)

    def _read(self, region: RemoteRegion, copy: Callable[[Registration, object], None]) -> Entries:
        table = _registered(region).table
        before = table.read(region.slot)
        copy(registry().find(region), registry().hold(region))
        after = table.read(region.slot)
        region.check(after)
        return before, after

    def write(self, part: Part, source: Sequence[Run], deadline: float) -> None:
        def copy(registration: Registration, memory: object) -> None:
            if part.region.is_on_cpu:
                copy_runs(source, list(part.runs()))
            else:
                target = registered_part(registration, memory, part.ranges)
                copy_from_host(source, target, self._workers)

        self._write(part.region, copy, deadline)

    def write_across(self, part: Part, source: DevicePart, deadline: float) -> None:
        """Copy memory of a GPU of this process to the part, without the host's memory."""

        def copy(registration: Registration, memory: object) -> None:
            copy_across(source, registered_part(registration, memory, part.ranges))

        self._write(part.region, copy, deadline)

    def _write(
        self, region: RemoteRegion, copy: Callable[[Registration, object], None], deadline: float
    ) -> None:
        registrations = _registered(region)
        registration, memory = registrations.find(region), registrations.hold(region)
        with registrations.table.writing(region.slot, deadline):
            copy(registration, memory)

    def exchange(
        self, region: RemoteRegion, offset: int, change: WordChange, deadline: float
    ) -> int:
        return exchange(_registered(region).find(region), offset, change, deadline)


def exchange(registration: Registration, offset: int, change: WordChange, deadline: float) -> int:
    """Change a 64-bit word of this process; return its old value.

    Raises ``RemoteMemoryError``, which names neither buffer nor owner, if the memory is gone.
    """
    slot, memory = registration.slot, registration.life.hold()
    if memory is None:
        raise RemoteMemoryError("", "", FREED_MEMORY)
    with (
        tables.closing(registry().table.open()) as fd,
        tables.in_use(fd, slot, deadline),
        tables.alone(fd, slot, deadline),
        on_host(registration, memory, offset, offset + 8, is_read=True, is_written=True) as runs,
    ):
        word = view_at(runs[0][0], 8)
        old = int(_WORD.unpack(word)[0])
        new = change.of(old)
        if new is not None:
            with tables.changing(fd, slot, deadline):
                _WORD.pack_into(word, 0, new)
        return old


def _registered(region: RemoteRegion) -> Registrations:
    if not is_own(region):
        raise BackendUnavailable("it is of another process")
    return registry()
