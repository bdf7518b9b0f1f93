"""The backend for memory of this process itself: a plain copy."""

from __future__ import annotations

import os
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
from monarch.rdma.memory.table import TableEntry
from monarch.rdma.memory.workers import Workers
from monarch.rdma.ways.backend import BackendUnavailable
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

    def read(
        self, part: Part | Ranges, into: Sequence[Run], deadline: float
    ) -> tuple[TableEntry, TableEntry]:
        def copy(found: Registration, held: object) -> None:
            if part.region.is_on_cpu:
                copy_runs(list(part.runs()), into)
            else:
                copy_to_host(registered_part(found, held, part.ranges), into, self._workers)

        return self._read(part, copy)

    def read_across(
        self, part: Part | Ranges, target: DevicePart, deadline: float
    ) -> tuple[TableEntry, TableEntry]:
        return self._read(
            part,
            lambda found, held: copy_across(registered_part(found, held, part.ranges), target),
        )

    def _read(
        self, part: Part | Ranges, copy: Callable[[Registration, object], None]
    ) -> tuple[TableEntry, TableEntry]:
        region, table = part.region, _registered(part.region).table
        before = table.read(region.slot)
        copy(registry().find(region), registry().hold(region))
        after = table.read(region.slot)
        region.check(after)
        return before, after

    def write(self, part: Part, source: Sequence[Run], deadline: float) -> None:
        def copy(found: Registration, held: object) -> None:
            if part.region.is_on_cpu:
                copy_runs(source, list(part.runs()))
            else:
                copy_from_host(source, registered_part(found, held, part.ranges), self._workers)

        self._write(part, copy, deadline)

    def write_across(self, part: Part, source: DevicePart, deadline: float) -> None:
        def copy(found: Registration, held: object) -> None:
            copy_across(source, registered_part(found, held, part.ranges))

        self._write(part, copy, deadline)

    def _write(
        self, part: Part, copy: Callable[[Registration, object], None], deadline: float
    ) -> None:
        region = part.region
        fd = _registered(region).table.open()
        try:
            found, held = registry().find(region), registry().hold(region)
            with (
                tables.in_use(fd, region.slot, deadline),
                tables.changing(fd, region.slot, deadline),
            ):
                copy(found, held)
        finally:
            os.close(fd)

    def fetch_add(self, region: RemoteRegion, offset: int, amount: int, deadline: float) -> int:
        found = _registered(region).find(region)
        return exchange(found, offset, lambda old: (old + amount) % 2**64, deadline)

    def compare_and_swap(
        self, region: RemoteRegion, offset: int, expected: int, new: int, deadline: float
    ) -> int:
        found = _registered(region).find(region)
        return exchange(found, offset, lambda old: new if old == expected else None, deadline)


def exchange(
    found: Registration, offset: int, change: Callable[[int], int | None], deadline: float
) -> int:
    """Set a 64-bit word of this process to ``change(old)``, unless that is ``None``; return the old
    value."""
    fd = registry().table.open()
    try:
        held = found.life.hold()
        if held is None:
            raise RemoteMemoryError("", "", FREED_MEMORY)
        with (
            tables.in_use(fd, found.slot, deadline),
            tables.alone(fd, found.slot, deadline),
            on_host(found, held, offset, offset + 8, is_read=True, is_written=True) as runs,
        ):
            word = view_at(runs[0][0], 8)
            old = int(_WORD.unpack(word)[0])
            new = change(old)
            if new is not None:
                with tables.changing(fd, found.slot, deadline):
                    _WORD.pack_into(word, 0, new)
            return old
    finally:
        os.close(fd)


def _registered(region: RemoteRegion) -> Registrations:
    if not is_own(region):
        raise BackendUnavailable("it is of another process")
    return registry()
