"""Chooses the backend of a transfer: the first, in a fixed order, that reaches the owner."""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from monarch.config import settings, upstream_value
from monarch.net.machine import machine_id
from monarch.rdma.memory.device_memory import AT_ONCE, DevicePart, chunks_of, staged
from monarch.rdma.memory.layout import Run, RunReader
from monarch.rdma.memory.region import Part, Ranges, RemoteRegion
from monarch.rdma.memory.registry import close_registry
from monarch.rdma.memory.workers import Workers
from monarch.rdma.ways.availability import RDMATcpFallbackWarning, is_ibverbs_available
from monarch.rdma.ways.backend import Backend, BackendUnavailable, Entries
from monarch.rdma.ways.cuda_ipc import CudaIpc
from monarch.rdma.ways.own_process import OwnProcess, is_own
from monarch.rdma.ways.process_vm import ProcessVm
from monarch.rdma.ways.serving import MemoryService
from monarch.rdma.ways.tcp import Tcp
from monarch.runtime import process

if TYPE_CHECKING:
    from monarch.rdma.ways.verbs.verbs_backend import Verbs

T = TypeVar("T")

_log = logging.getLogger("monarch.rdma")
_FIRST_PAUSE_SECONDS = 0.0002


class Ways:
    """All backends of this process, and which of them cannot reach which owner."""

    def __init__(self) -> None:
        #: The threads that move bytes.
        self.workers = Workers()
        #: One backend of each kind.
        self._own = OwnProcess(self.workers)
        self._process_vm = ProcessVm()
        self._cuda_ipc = CudaIpc(self.workers)
        self._tcp = Tcp()
        #: The backend for RDMA devices; ``None`` on a machine without such a device.
        self._verbs: Verbs | None = _open_verbs() if is_ibverbs_available() else None
        #: Why a backend cannot reach an owner, by the nonce of its table and the backend's name.
        self._refused: dict[tuple[int, str], str] = {}
        #: Whether the program has been warned that data is sent over TCP.
        self._has_warned = False
        node = process.current().node
        self._service = MemoryService(node)
        node.on_gone += [self._tcp.forget, self._cuda_ipc.forget]
        if self._verbs is not None:
            node.on_gone.append(self._verbs.forget)

    def to(self, region: RemoteRegion) -> list[Backend]:
        """Return the backends that may reach the region, best first."""
        if is_own(region):
            return [self._own]
        backends: list[Backend] = []
        if region.owner.machine == machine_id() and settings().rdma_same_host:
            backends.append(self._process_vm if region.is_on_cpu else self._cuda_ipc)
        if self._verbs is not None and is_ibverbs_available():
            backends.append(self._verbs)
        if upstream_value("rdma_allow_tcp_fallback"):
            backends.append(self._tcp)
        nonce = region.table.nonce
        return [way for way in backends if (nonce, way.name) not in self._refused]

    def is_quick(self, region: RemoteRegion) -> bool:
        """Return whether a small transfer takes less time than waking a thread for it."""
        first = next(iter(self.to(region)), None)
        if first is self._cuda_ipc:
            return self._cuda_ipc.is_mapped(region)
        return first is self._own or first is self._process_vm

    def goes_across(self, region: RemoteRegion) -> bool:
        """Return whether a GPU of this process can probably copy without this host's memory.

        That is a copy to or from the region. The first copy may find that it cannot.
        """
        return self._across(region) is not None

    def warn_of_tcp(self, region: RemoteRegion) -> None:
        """Warn once that data is sent over TCP because no RDMA device reaches the owner."""
        ways = self.to(region)
        if ways and ways[0] is self._tcp and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "no RDMA device leads to other hosts from here: memory is read and written over "
                "TCP (configure(rdma_allow_tcp_fallback=False) makes that an error)",
                RDMATcpFallbackWarning,
                stacklevel=4,
            )

    def by_first(self, region: RemoteRegion, use: Callable[[Backend], T]) -> T:
        """Call ``use`` with the backends in turn, until one reaches the region; return the result.

        Raises ``RemoteMemoryError`` if none does.
        """
        reasons = []
        for way in self.to(region):
            try:
                return use(way)
            except BackendUnavailable as error:
                reasons.append(f"{way.name}: {error}")
                self._refuse(region, way, error)
        nonce = region.table.nonce
        reasons = reasons or [
            f"{name}: {why}" for (of, name), why in list(self._refused.items()) if of == nonce
        ]
        if not upstream_value("rdma_allow_tcp_fallback"):
            reasons.append("tcp: configure(rdma_allow_tcp_fallback=True) would allow it")
        # Nothing was moved: the obstacle may be gone at a later try.
        for key in [key for key in self._refused if key[0] == nonce]:
            self._refused.pop(key, None)
        raise region.error(
            f"no way leads there ({'; '.join(reasons)}). Fix one of these, and try again"
        )

    def _refuse(self, region: RemoteRegion, way: Backend, error: BackendUnavailable) -> None:
        self._refused[region.table.nonce, way.name] = str(error)
        if way.name != "tcp":
            _say_once(way.name, str(error))

    def read(
        self, part: Part, into: Sequence[Run], deadline: float, *, consistent: bool = False
    ) -> None:
        """Copy the part into runs of this process's memory.

        ``consistent`` repeats the copy until no write was in progress.
        """

        self._read(
            part, lambda: self._in_pieces(part, into, deadline), deadline, consistent=consistent
        )

    def read_to_gpu(
        self, part: Part, target: DevicePart, deadline: float, *, consistent: bool = False
    ) -> None:
        """Copy the part into memory of a GPU of this process.

        ``consistent`` repeats the copy until no write was in progress.
        """

        def once() -> list[Entries]:
            way = self._across(part.region)
            if way is not None:
                try:
                    return [way.read_across(part, target, deadline)]
                except BackendUnavailable as error:
                    self._refuse(part.region, way, error)
            return self._by_pinned(part, target, deadline)

        self._read(part, once, deadline, consistent=consistent)

    def read_across(self, ranges: Ranges, target: DevicePart, deadline: float) -> bool:
        """Copy ranges of a GPU's region into GPUs of this process, from device to device.

        Returns False, with nothing copied, if no backend can.
        """
        way = self._across(ranges.region)
        if way is None:
            return False
        try:
            way.read_across(ranges, target, deadline)
        except BackendUnavailable as error:
            self._refuse(ranges.region, way, error)
            return False
        return True

    def _by_pinned(self, part: Part, target: DevicePart, deadline: float) -> list[Entries]:
        """Copy the part into GPU memory, in chunks that go through pinned memory of this host.

        The GPU copies chunks while later ones are being read. Returns the table entries before and
        after each read.
        """
        entries: list[Entries] = []

        def task(start: int, stop: int) -> None:
            piece = Part(part.region, part.start + start, part.start + stop)
            with staged(target.cut(start, stop), is_read=False, is_written=True) as runs:
                entries.append(
                    self.by_first(part.region, lambda way: way.read(piece, runs, deadline))
                )

        tasks = [functools.partial(task, *chunk) for chunk in chunks_of(part.nbytes)]
        self.workers.run_all(tasks, AT_ONCE)
        return entries

    def write_from_gpu(self, part: Part, source: DevicePart, deadline: float) -> None:
        """Copy memory of a GPU of this process into the part.

        It counts as one write: a consistent reader sees all of it or nothing.
        """
        way = self._across(part.region)
        if way is not None:
            try:
                way.write_across(part, source, deadline)
                return
            except BackendUnavailable as error:
                self._refuse(part.region, way, error)
        with staged(source, is_read=True, is_written=False) as runs:
            self.write(part, runs, deadline)

    def _across(self, region: RemoteRegion) -> OwnProcess | CudaIpc | None:
        """Return the backend that copies between this region and GPUs of this process, if there is
        one."""
        if region.is_on_cpu:
            return None
        first = next(iter(self.to(region)), None)
        return first if isinstance(first, (OwnProcess, CudaIpc)) else None

    def _read(
        self, part: Part, once: Callable[[], list[Entries]], deadline: float, *, consistent: bool
    ) -> None:
        """Call ``once``, which copies the part.

        If ``consistent``, it is called until no write was in progress. Raises ``TimeoutError`` if
        that does not happen before the deadline.
        """
        pause, is_torn = _FIRST_PAUSE_SECONDS, False
        while True:
            try:
                entries = once()
            except TimeoutError:
                if not is_torn:
                    raise
                entries = []
            if not consistent or _is_one_version(entries):
                return
            is_torn = True
            if time.monotonic() + pause > deadline:
                raise TimeoutError(
                    f"{part.region} was being written all the time, or whoever wrote last ended "
                    "before it was done: have it written anew, or read without consistent=True"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def read_ranges(self, ranges: Ranges, into: Sequence[Run], deadline: float) -> None:
        """Copy ranges of a region, in their order, into runs of this process's memory."""
        self.by_first(ranges.region, lambda way: way.read(ranges, into, deadline))

    def write(self, part: Part, source: Sequence[Run], deadline: float) -> None:
        """Copy runs of this process's memory into the part.

        It counts as one write: a consistent reader sees all of it or nothing.
        """
        self.by_first(part.region, lambda way: way.write(part, source, deadline))

    def _in_pieces(self, part: Part, into: Sequence[Run], deadline: float) -> list[Entries]:
        """Copy the part into ``into``, with several threads if it is large.

        Returns the table entries before and after each thread's copies.
        """
        entries: list[Entries] = []

        def task(piece: Part, runs: Sequence[Run]) -> None:
            entries.append(self.by_first(part.region, lambda way: way.read(piece, runs, deadline)))

        most = max(1, upstream_value("rdma_max_chunk_size_mb")) * 2**20
        # The backends themselves cut GPU memory where that helps.
        if part.nbytes <= most or self.goes_across(part.region):
            task(part, into)
            return entries
        unfilled = RunReader(into)
        tasks = [
            functools.partial(task, piece, unfilled.take(piece.nbytes)) for piece in part.cut(most)
        ]
        at_once = min(settings().rdma_tcp_streams, max(2, os.cpu_count() or 1))
        self.workers.run_all(tasks, at_once)
        return entries

    def close(self) -> None:
        self._service.close()
        self._tcp.close()
        self._cuda_ipc.close()
        if self._verbs is not None:
            self._verbs.close()
        self.workers.close()


def _open_verbs() -> Verbs:
    # Imported when used: most machines have no such device.
    from monarch.rdma.ways.verbs.installed import find_library
    from monarch.rdma.ways.verbs.verbs_backend import Verbs

    library = find_library()
    assert library is not None
    return Verbs(library)


def _is_one_version(entries: Sequence[Entries]) -> bool:
    """Return whether the entries are equal and at rest: no write happened from first to last."""
    different = {entry for pair in entries for entry in pair}
    return len(different) == 1 and different.pop().is_at_rest


@functools.lru_cache(maxsize=64)
def _say_once(name: str, why: str) -> None:
    _log.warning("memory of other processes is not reached by %s: %s", name, why)


_lock = threading.Lock()


def ways() -> Ways:
    """Return the backends of this process, which are closed when it leaves the network."""
    agent: Any = process.current()
    opened = _of_agents.get(id(agent))
    if opened is None:
        with _lock:
            opened = _of_agents.get(id(agent))
            if opened is None:
                opened = _of_agents[id(agent)] = Ways()
                agent.at_close.append(functools.partial(_close, id(agent)))
    return opened


_of_agents: dict[int, Ways] = {}
_of_parents: list[Ways] = []


def _forget() -> None:
    """Set the parent's backends aside in a forked child.

    Their threads do not run in it, and the child's agent may get the same ``id`` as the parent's.
    They are kept, not freed: resources of network cards belong to the parent.
    """
    global _lock
    _lock = threading.Lock()
    _of_parents.extend(_of_agents.values())
    _of_agents.clear()


os.register_at_fork(after_in_child=_forget)


def _close(key: int) -> None:
    opened = _of_agents.pop(key, None)
    if opened is not None:
        opened.close()
    close_registry()
