"""Memory of a GPU of this host, in another process: mapped here by CUDA's own handles (IPC).

The handle of an allocation is asked of its owner once; torch counts the processes that have it
mapped.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from monarch.errors import RemoteMemoryError
from monarch.rdma import table as tables
from monarch.rdma.asking import add_by_owner, ask_owner, swap_by_owner
from monarch.rdma.backend import BackendUnavailable
from monarch.rdma.device_memory import staged
from monarch.rdma.gpu import gpu
from monarch.rdma.layout import Run
from monarch.rdma.own_process import copy_runs
from monarch.rdma.region import Part, Ranges, RemoteRegion
from monarch.rdma.registry import registry
from monarch.rdma.serving import answers
from monarch.rdma.table import TableEntry
from monarch.runtime.links.network import Gone
from monarch.wire.address import Uid

_WHAT = "cuda handle"


@dataclass(frozen=True)
class _Mapping:
    """A storage of another process; ``base`` is where it begins there."""

    region: RemoteRegion
    storage: Any
    base: int


class CudaIpc:
    """The way to memory of GPUs that processes of this host hold."""

    name = "cuda_ipc"

    def __init__(self) -> None:
        self._mapped: dict[int, _Mapping] = {}
        self._lock = threading.Lock()

    def read(
        self, part: Part | Ranges, into: Sequence[Run], deadline: float
    ) -> tuple[TableEntry, TableEntry]:
        storage, runs = self._mapping(part, deadline)
        before = _entry(part.region)
        with staged(storage, runs, is_read=True, is_written=False) as here:
            copy_runs(here, into)
        after = _entry(part.region)
        return before, after

    def write(self, part: Part, source: Sequence[Run], deadline: float) -> None:
        storage, runs = self._mapping(part, deadline)
        region = part.region
        fd = _open(region)
        try:
            with tables.in_use(fd, region.slot, deadline):
                region.check(tables.entry_at(fd, region.slot))
                with (
                    tables.changing(fd, region.slot, deadline),
                    staged(storage, runs, is_read=False, is_written=True) as there,
                ):
                    copy_runs(source, there)
        finally:
            os.close(fd)

    def fetch_add(self, region: RemoteRegion, offset: int, amount: int, deadline: float) -> int:
        return add_by_owner(region, offset, amount, deadline)

    def compare_and_swap(
        self, region: RemoteRegion, offset: int, expected: int, new: int, deadline: float
    ) -> int:
        return swap_by_owner(region, offset, expected, new, deadline)

    def _mapping(self, part: Part | Ranges, deadline: float) -> tuple[Any, Sequence[Run]]:
        """The storage as it is mapped here, and the runs of the part in it."""
        region = part.region
        with self._lock:
            found = self._mapped.get(region.key)
        if found is None:
            self._let_go()
            storage, base = self._map(region, deadline)
            found = _Mapping(region, storage, base)
            with self._lock:
                self._mapped[region.key] = found
        here = gpu().address_of(found.storage) - found.base
        return found.storage, [(address + here, size) for address, size in part.runs()]

    def _let_go(self) -> None:
        """Unmap what has ended: its owner's memory is not given back before."""
        with self._lock:
            known = list(self._mapped.values())
        for one in known:
            try:
                _entry(one.region)
            except RemoteMemoryError:
                with self._lock:
                    self._mapped.pop(one.region.key, None)

    def forget(self, uid: Uid, how: Gone) -> None:
        """A process is gone."""
        with self._lock:
            for one in [one for one in self._mapped.values() if one.region.owner.uid == uid]:
                del self._mapped[one.region.key]

    def close(self) -> None:
        with self._lock:
            self._mapped.clear()

    def _map(self, region: RemoteRegion, deadline: float) -> tuple[Any, int]:
        if not gpu().is_there():
            raise BackendUnavailable("this process has no GPU")
        body = ask_owner(region, _WHAT, {}, deadline)
        try:
            return gpu().open(body["handle"]), body["base"]
        except (RuntimeError, OSError) as error:
            raise BackendUnavailable(str(error)) from None


def _handle(about: dict[str, Any]) -> dict[str, Any]:
    """The owner's part."""
    found = registry().find_entry(about["slot"], about["key"])
    storage: Any = found.life.hold()
    try:
        return {"handle": gpu().share(storage), "base": gpu().address_of(storage)}
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
