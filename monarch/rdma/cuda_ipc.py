"""Memory of a GPU of this host, in another process: mapped here by CUDA's own handles (IPC).

The handle of an allocation is asked of its owner once; torch keeps count of who has it mapped.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from monarch.rdma import table as tables
from monarch.rdma.backend import BackendUnavailable
from monarch.rdma.device_memory import staged
from monarch.rdma.layout import Run
from monarch.rdma.own_process import copy_runs
from monarch.rdma.region import Part, Ranges, RemoteRegion
from monarch.rdma.registry import registry
from monarch.rdma.serving import answers
from monarch.rdma.table import TableEntry
from monarch.runtime import process
from monarch.wire.message import AskMemory

_WHAT = "cuda handle"


class CudaIpc:
    """The way to memory of GPUs that processes of this host hold."""

    name = "cuda_ipc"

    def __init__(self) -> None:
        self._mapped: dict[tuple[int, int], Any] = {}
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
        raise BackendUnavailable("atomic operations on a GPU's memory go by its owner")

    def compare_and_swap(
        self, region: RemoteRegion, offset: int, expected: int, new: int, deadline: float
    ) -> int:
        raise BackendUnavailable("atomic operations on a GPU's memory go by its owner")

    def _mapping(self, part: Part | Ranges, deadline: float) -> tuple[Any, Sequence[Run]]:
        """The storage as it is mapped here, and the runs of the part in it."""
        region = part.region
        key = region.slot, region.key
        with self._lock:
            found = self._mapped.get(key)
        if found is None:
            found = self._map(region, deadline)
            with self._lock:
                self._mapped[key] = found
        storage, base = found
        here = storage.data_ptr()
        return storage, [(address - base + here, size) for address, size in part.runs()]

    def _map(self, region: RemoteRegion, deadline: float) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            raise BackendUnavailable("this process has no GPU")
        node = process.current().node
        about = {"slot": region.slot, "key": region.key}
        asked = node.request(region.owner, lambda port: AskMemory(_WHAT, about, port, node.address))
        if not asked.wait(max(0.0, deadline - time.monotonic())):
            raise TimeoutError(f"the owner of {region} has not answered in time")
        if asked.value.is_down:
            raise region.error(f"its process is gone: {asked.value.error}")
        if asked.value.error:
            raise BackendUnavailable(asked.value.error)
        body = asked.value.body
        return torch.UntypedStorage._new_shared_cuda(*body["handle"]), body["base"]


def _handle(about: dict[str, Any]) -> dict[str, Any]:
    """The owner's part."""
    found = registry().find_entry(about["slot"], about["key"])
    storage: Any = found.life.hold()
    return {"handle": list(storage._share_cuda_()), "base": storage.data_ptr()}


answers[_WHAT] = _handle


def _open(region: RemoteRegion) -> int:
    try:
        return region.table.open()
    except OSError as error:
        raise region.error(f"its process has ended ({error.strerror})") from None


def _entry(region: RemoteRegion) -> TableEntry:
    fd = _open(region)
    try:
        entry = tables.entry_at(fd, region.slot)
    finally:
        os.close(fd)
    region.check(entry)
    return entry
