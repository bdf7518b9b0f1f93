"""`SharedStateDict`: weights that a trainer publishes and others fetch."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from monarch.actor.controllers import get_or_spawn_controller
from monarch.actor.future import Future
from monarch.errors import RemoteMemoryError
from monarch.net.machine import machine_id
from monarch.rdma.buffer import DEFAULT_TIMEOUT, RDMABuffer, deadline_of
from monarch.rdma.memory.device_memory import DevicePart, copy_across, copy_to_host, part_of
from monarch.rdma.memory.gpu import GpuMark, gpu
from monarch.rdma.memory.layout import Run, StoragePlace, joined
from monarch.rdma.memory.memory import LocalMemory, memory_of
from monarch.rdma.memory.region import Part, Ranges
from monarch.rdma.transfers import start
from monarch.rdma.ways.choice import Ways, ways
from monarch.rdma.weights.directory import Directory, Held, Source, WholeVersion
from monarch.rdma.weights.reshard import CopyStep, ShardPiece, plan
from monarch.rdma.weights.shards import (
    HeldTensor,
    box,
    describe,
    local_of,
    pieces_wanted,
    tensors_of,
    view_of,
)
from monarch.rdma.weights.slab import HEADER_BYTES, ON_DEVICE, VERSION, Slab, SlabPlace
from monarch.runtime import process

_LOOK_SECONDS = 5.0
_MOST_OF_FREE = 0.25
"""A copy on a GPU takes at most this part of what is free there."""

_MOST = 0.5
"""From this part of a rank's bytes on, a reader that is alone on its host copies all of them."""


class SharedStateDict:
    """A state dict with a name, shared by all processes of the program.

    The ranks of a trainer ``publish`` it, each its own shards; a version exists once all ranks have
    published it. Readers with any layout ``fetch`` the newest one. Pickled, it is a reference.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._publisher: _Publisher | None = None
        self._reader: _Fetcher | None = None

    def publish(
        self, state: Any, *, rank: int = 0, num_ranks: int = 1, version: int | None = None
    ) -> Future[int]:
        """Make ``state``, a module or a mapping of tensors (DTensors, too), the next version.

        The future has its number, and is done when the tensors have been copied: they may change
        from then on. Readers see the version when all of ``num_ranks`` have published it. Versions
        count from 1; ``version``, if given, must grow. Raises ``TypeError`` for values that are no
        tensors.
        """
        tensors = tensors_of(state)
        on_gpu = _on_gpu(tensors)

        def work(way: Ways) -> int:
            with self._lock:
                return self._publisher_of(rank, num_ranks).publish(way, tensors, on_gpu, version)

        return start(ways(), work, is_waiting=True)

    def prepare(self, state: Any, *, rank: int = 0, num_ranks: int = 1) -> Future[None]:
        """Allocate the memory into which ``publish`` will copy such a ``state``, ahead of time.

        For GPU tensors, pages of the host are made and pinned, which takes longer than the first
        copy.
        """
        tensors = tensors_of(state)
        on_gpu = _on_gpu(tensors)

        def work(way: Ways) -> None:
            with self._lock:
                self._publisher_of(rank, num_ranks).prepare(way, tensors, on_gpu)

        return start(ways(), work, is_waiting=True)

    def _publisher_of(self, rank: int, num_ranks: int) -> _Publisher:
        if self._publisher is None or self._publisher.key != (rank, num_ranks):
            self._publisher = _Publisher(_directory(self.name), rank, num_ranks)
        return self._publisher

    def fetch(
        self, into: Any, *, version: int = 0, timeout: float = DEFAULT_TIMEOUT
    ) -> Future[int]:
        """Copy the newest version, at least ``version``, into a module or a mapping of tensors.

        Each tensor gets its part of the published tensor with its key, in its own dtype: shards of
        any placement, or all of it. The future has the version's number: all bytes are of that
        version. It raises ``TimeoutError`` if there is none in time, ``KeyError`` for a key that is
        not published, ``RemoteMemoryError`` if the processes that have the bytes are gone.
        """
        tensors, deadline = tensors_of(into), deadline_of(timeout)
        ready = _marks_of(_on_gpu(tensors))

        def work(way: Ways) -> int:
            for mark in ready:
                mark.wait()
            with self._lock:
                if self._reader is None:
                    self._reader = _Fetcher(_directory(self.name))
                return self._reader.fetch(way, tensors, version, deadline)

        return start(ways(), work, is_waiting=True)

    def wait_for(self, version: int, *, timeout: float = DEFAULT_TIMEOUT) -> Future[int]:
        """Return a future of the newest version's number, once it is at least ``version``."""
        deadline = deadline_of(timeout)
        return start(
            ways(),
            lambda _: _look(_directory(self.name), version, 0, deadline).version,
            is_waiting=True,
        )

    def subscribe(self, after: int = 0) -> Subscription:
        """Iterate over the numbers of versions after ``after``, with ``for`` or ``async for``.

        Each is newer than the one before. If several appear between two steps, only the last is
        given.
        """
        return Subscription(self, after)

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedStateDict, (self.name,)

    def __repr__(self) -> str:
        return f"SharedStateDict({self.name!r})"


class Subscription:
    """An iterator over the numbers of new versions."""

    def __init__(self, shared: SharedStateDict, after: int) -> None:
        self._shared = shared
        self._seen = after

    def _next(self) -> Future[int]:
        return self._shared.wait_for(self._seen + 1, timeout=2**31)

    def __iter__(self) -> Iterator[int]:
        while True:
            self._seen = self._next().get()
            yield self._seen

    async def __aiter__(self) -> AsyncIterator[int]:
        while True:
            self._seen = await self._next()
            yield self._seen


def _directory(name: str) -> Any:
    found: Any = get_or_spawn_controller(f"shared state dict {name}", Directory).get()
    return found


def _look(directory: Any, at_least: int, epoch: int, deadline: float) -> WholeVersion:
    while True:
        left = deadline - time.monotonic()
        asked = directory.look.call_one(at_least, epoch, max(0.0, min(left, _LOOK_SECONDS)))
        found: WholeVersion | None = asked.get()
        if found is not None:
            return found
        if left <= 0:
            raise TimeoutError(
                f"no version {max(1, at_least)} was published in time: it takes publish() of all "
                "ranks of the trainer. See that they come to it, or give a longer timeout="
            )


def _on_gpu(tensors: Mapping[str, Any]) -> dict[str, LocalMemory]:
    """Return this rank's memory of the tensors on GPUs, as it is after the caller's queued work.

    Torch copies the other tensors.
    """
    found = {}
    for key, tensor in tensors.items():
        memory = _memory_on_gpu(local_of(tensor))
        if memory is not None:
            found[key] = memory.as_of_now()
    return found


def _memory_on_gpu(tensor: Any) -> LocalMemory | None:
    try:
        memory = memory_of(tensor)
    except TypeError:
        return None
    return memory if memory.device != "cpu" and memory.nbytes else None


def _marks_of(on_gpu: Mapping[str, LocalMemory]) -> list[GpuMark]:
    return [mark for memory in on_gpu.values() for mark in memory.ready]


class _Publisher:
    """One rank's part of a state dict: its slab, and the places of the tensors in it."""

    def __init__(self, directory: Any, rank: int, num_ranks: int) -> None:
        self.key = rank, num_ranks
        self._directory = directory
        self._last: int = directory.last_of.call_one(rank).get()
        self._slab: Slab | None = None
        self._mine: Held | None = None
        self._device = -1
        self._device_memory: LocalMemory | None = None
        self._is_told = False

    def prepare(
        self, way: Ways, tensors: Mapping[str, Any], on_gpu: Mapping[str, LocalMemory]
    ) -> tuple[Slab, Held]:
        """Return the memory for such tensors: the existing one if it has their shapes and
        devices."""
        held, num_bytes = describe(tensors)
        device = _one_device(tensors, on_gpu)
        known = self._mine
        if self._slab is None or known is None or held != known.tensors:
            self._slab = Slab.create(num_bytes, machine_id())
            self._device_memory = None
            buffer = RDMABuffer(memoryview(self._slab.memory))
            self._mine = Held(held, self._slab.place, buffer)
            self._is_told = False
            self._device = device
            if device >= 0:
                self._copy_on(device, self._slab.half_bytes)
        if on_gpu:
            self._slab.pin(way.workers)
        assert self._mine is not None
        return self._slab, self._mine

    def _copy_on(self, device: int, num_bytes: int) -> None:
        """Allocate a copy on the GPU, if that leaves most of its free memory."""
        assert self._mine is not None
        try:
            if num_bytes > gpu().free_bytes(device) * _MOST_OF_FREE:
                return
            array = gpu().allocate(num_bytes, device)
        except (RuntimeError, MemoryError):
            return  # Readers use the host's memory.
        self._device_memory = memory_of(array)
        self._mine = replace(self._mine, on_device=RDMABuffer(array))

    def publish(
        self, way: Ways, tensors: Mapping[str, Any], on_gpu: Mapping[str, LocalMemory],
        version: int | None,
    ) -> int:  # fmt: skip
        number = self._last + 1 if version is None else version
        if number <= self._last:
            raise ValueError(
                f"version {number} is not newer than {self._last}: leave it out, or count on"
            )
        slab, mine = self.prepare(way, tensors, on_gpu)
        rank, num_ranks = self.key
        half = number % 2
        copied = None
        if self._device_memory is not None and _one_device(tensors, on_gpu) == self._device:
            copied = self._copy_across(slab, mine, on_gpu, number)
        with slab.filling(half, number) as memory:
            if copied is not None:
                copy_to_host(copied, memory_of(memory).runs(), way.workers)
            else:
                _copy_each(way, memory, mine, tensors, on_gpu)
        uid = process.current().node.uid
        told = None if self._is_told else mine
        self._directory.publish.call_one(rank, num_ranks, number, half, told, uid).get()
        self._is_told = True
        self._last = number
        return number

    def _copy_across(
        self, slab: Slab, mine: Held, on_gpu: Mapping[str, LocalMemory], number: int
    ) -> DevicePart:
        """Copy the tensors to the copy on the GPU, which has all of a half, and return it."""
        assert self._device_memory is not None
        whole = part_of(self._device_memory)
        with slab.filling(ON_DEVICE, number):
            target = [
                place for key in on_gpu for place in whole.cut(*_bounds(mine.tensors[key])).places
            ]
            source = [place for one in on_gpu.values() for place in part_of(one).places]
            copy_across(DevicePart(source, _marks_of(on_gpu)), DevicePart(target))
        return whole


def _bounds(held: HeldTensor) -> tuple[int, int]:
    return held.offset, held.offset + held.nbytes


def _one_device(tensors: Mapping[str, Any], on_gpu: Mapping[str, LocalMemory]) -> int:
    """Return the GPU that has all tensors with bytes; -1 if there is no such GPU."""
    if any(key not in on_gpu and local_of(tensor).numel() for key, tensor in tensors.items()):
        return -1
    devices = {gpu().device_of(one.keep) for one in on_gpu.values()}
    return devices.pop() if len(devices) == 1 else -1


def _copy_each(
    way: Ways, memory: memoryview, mine: Held, tensors: Mapping[str, Any],
    on_gpu: Mapping[str, LocalMemory],
) -> None:  # fmt: skip
    """Copy each tensor to its place in a half; GPU tensors are copied together at the end."""
    source: list[StoragePlace] = []
    runs: list[Run] = []
    start = memory_of(memory).address
    for key, tensor in tensors.items():
        one, here = mine.tensors[key], on_gpu.get(key)
        if here is None:
            view_of(memory, one.offset, one.dtype, one.local).copy_(local_of(tensor))
        else:
            source += part_of(here).places
            runs.append((start + one.offset, one.nbytes))
    if source:
        copy_to_host(DevicePart(source, _marks_of(on_gpu)), runs, way.workers)


class _Replaced(Exception):
    """A newer version replaced the one that was being copied."""


class _Fetcher:
    """Fetches for one process; it remembers what is published, and the slabs that it has mapped."""

    def __init__(self, directory: Any) -> None:
        self._directory = directory
        self._epoch = 0
        self._held: tuple[Held, ...] = ()
        self._pieces: list[dict[str, Sequence[ShardPiece]]] = []
        self._mapped: dict[SlabPlace, Slab] = {}
        self._copies: dict[int, tuple[Slab, RDMABuffer]] = {}
        self._uid = process.current().node.uid

    def fetch(self, way: Ways, tensors: Mapping[str, Any], version: int, deadline: float) -> int:
        wanted = {key: pieces_wanted(tensor) for key, tensor in tensors.items()}
        targets = {key: local_of(tensor) for key, tensor in tensors.items()}
        # Readers that begin at different replicas divide the work.
        first = hash(self._uid)
        lost: set[int] = set()
        error: RemoteMemoryError | None = None
        while True:
            snapshot = _look(self._directory, version, self._epoch, deadline)
            self._learn(snapshot)
            self._check_dtypes_are_known()
            try:
                steps = plan(wanted, self._pieces, first=first, lost=frozenset(lost))
            except ValueError:
                if error is not None:
                    raise error from None
                raise
            by_rank: dict[int, list[CopyStep]] = {}
            for step in steps:
                by_rank.setdefault(step.rank, []).append(step)
            failed = None
            for rank, own in by_rank.items():
                try:
                    is_whole = self._fetch_rank(way, snapshot, rank, own, targets, deadline)
                except RemoteMemoryError as raised:
                    error, failed = raised, rank
                    break
                if not is_whole:
                    failed = -1
                    break
            if failed is None:
                return snapshot.version
            if failed >= 0:
                lost.add(failed)
            if time.monotonic() > deadline:
                raise error or TimeoutError(
                    "versions came faster than they could be fetched: publish less often, fetch "
                    "fewer keys, or give a longer timeout="
                )

    def _learn(self, snapshot: WholeVersion) -> None:
        if snapshot.held is not None:
            self._held, self._epoch = snapshot.held, snapshot.epoch
            self._pieces = [
                {key: one.pieces for key, one in held.tensors.items()} for held in self._held
            ]
            places = {one.place for one in self._held}
            for place in [place for place in self._mapped if place not in places]:
                del self._mapped[place]

    def _check_dtypes_are_known(self) -> None:
        torch = sys.modules["torch"]
        for held in self._held:
            for key, one in held.tensors.items():
                if not hasattr(torch, one.dtype):
                    raise TypeError(
                        f"{key!r} has a dtype that torch {torch.__version__} does not know: "
                        f"{one.dtype}. Use the trainer's version, or publish it as another dtype"
                    )

    def _fetch_rank(
        self, way: Ways, snapshot: WholeVersion, rank: int, steps: Sequence[CopyStep],
        targets: Mapping[str, Any], deadline: float,
    ) -> bool:  # fmt: skip
        """Copy one rank's part; return whether it had this version until the copy was done."""
        held, version = self._held[rank], snapshot.version
        if held.place.machine == machine_id() and (slab := self._map(held.place)) is not None:
            left = _unpack_across(way, slab, version, held, steps, targets, deadline)
            if any(_memory_on_gpu(targets[step.key]) is not None for step in left):
                slab.pin(way.workers)
            return _unpack(slab, snapshot.halves[rank], version, held, left, targets, deadline)
        num_needed = sum(held.tensors[step.key].item_bytes * _num(step.sizes) for step in steps)
        needs_most = num_needed > _MOST * held.place.half_bytes
        seconds = max(0.0, deadline - time.monotonic())
        source: Source | None = self._directory.source.call_one(
            version, rank, machine_id(), self._uid, needs_most, seconds
        ).get()
        if source is None:
            return False
        if source.kind == "gone":
            raise source.buffer.part.region.error(
                f"all that had version {version} have ended. Fetch again, once it or a later one "
                "has been published"
            )
        try:
            if source.kind == "map" and (slab := self._map(source.place)) is not None:
                return _unpack(slab, source.half, version, held, steps, targets, deadline)
            if source.kind == "copy":
                try:
                    slab, half = self._copy(way, source, rank, version, deadline)
                except _Replaced:
                    self._directory.failed.call_one(
                        version, rank, machine_id(), source.holder
                    ).get()
                    return False
                return _unpack(slab, half, version, held, steps, targets, deadline)
            return _read_steps(way, source, version, held, steps, targets, deadline)
        except RemoteMemoryError:
            self._directory.failed.call_one(version, rank, machine_id(), source.holder).get()
            if source.place == held.place:
                raise
            return False  # Another has it, too.

    def _map(self, place: SlabPlace) -> Slab | None:
        """Map the slab of a process of this host; return ``None`` if that fails."""
        found = self._mapped.get(place)
        if found is None:
            try:
                found = self._mapped[place] = Slab.of_peer(place)
            except OSError:
                return None
        return found

    def _copy(
        self, way: Ways, source: Source, rank: int, version: int, deadline: float
    ) -> tuple[Slab, int]:
        """Copy all of a rank's part into a slab here, for this host and for hosts that fetch from
        here."""
        size, half = source.place.half_bytes, version % 2
        known = self._copies.get(rank)
        if known is None or known[0].half_bytes != size:
            slab = Slab.create(size, machine_id())
            known = self._copies[rank] = slab, RDMABuffer(memoryview(slab.memory))
        slab, buffer = known
        region = source.buffer.part.region
        begin = HEADER_BYTES + source.half * size
        with slab.filling(half, version) as memory:
            runs = memory_of(memory).runs()
            way.read(Part(region, begin, begin + size), runs, deadline)
            if self._version_there(way, source, deadline) != version:
                raise _Replaced
        self._directory.copied.call_one(version, rank, self._uid, slab.place, buffer, half).get()
        return slab, half

    def _version_there(self, way: Ways, source: Source, deadline: float) -> int:
        word = bytearray(VERSION.size)
        place = 16 + 8 * source.half
        part = Part(source.buffer.part.region, place, place + VERSION.size)
        way.read(part, memory_of(word).runs(), deadline)
        return int(VERSION.unpack(word)[0])


def _num(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _unpack_across(
    way: Ways, slab: Slab, version: int, held: Held, steps: Sequence[CopyStep],
    targets: Mapping[str, Any], deadline: float,
) -> Sequence[CopyStep]:  # fmt: skip
    """Copy from the publisher's GPU to this process's, while it has the version there.

    Returns the steps that are left.
    """
    if held.on_device is None:
        return steps
    own: list[CopyStep] = []
    left: list[CopyStep] = []
    ranges: list[Run] = []
    places: list[StoragePlace] = []
    for step in steps:
        one, target = held.tensors[step.key], targets[step.key]
        memory = _memory_on_gpu(target[box(step.target, step.sizes)])
        if memory is None or str(target.dtype) != f"torch.{one.dtype}":
            left.append(step)
            continue
        own.append(step)
        ranges += joined(one.runs(step.source, step.sizes))
        places += part_of(memory).places
    if not own:
        return steps
    with slab.reading(ON_DEVICE, version, deadline) as there:
        if there is None:
            return steps
        region = held.on_device.part.region
        try:
            is_done = way.read_across(Ranges(region, tuple(ranges)), DevicePart(places), deadline)
        except RemoteMemoryError:
            return steps  # The publisher has ended: what it had in the host's memory has not.
        return left if is_done and slab.version(ON_DEVICE) == version else steps


def _unpack(
    slab: Slab, half: int, version: int, held: Held, steps: Sequence[CopyStep],
    targets: Mapping[str, Any], deadline: float,
) -> bool:  # fmt: skip
    """Copy from a slab of this host; return whether it had the version until the end."""
    with slab.reading(half, version, deadline) as memory:
        if memory is None:
            return False
        for step in steps:
            one = held.tensors[step.key]
            whole = view_of(memory, one.offset, one.dtype, one.local)
            part = whole[box(step.source, step.sizes)]
            targets[step.key][box(step.target, step.sizes)].copy_(part)
        # A reader that was stopped for long may have been overtaken all the same.
        return slab.version(half) == version


def _read_steps(
    way: Ways, source: Source, version: int, held: Held, steps: Sequence[CopyStep],
    targets: Mapping[str, Any], deadline: float,
) -> bool:  # fmt: skip
    """Read from another host only the bytes that the steps need."""
    base = HEADER_BYTES + source.half * source.place.half_bytes
    word = (16 + 8 * source.half, VERSION.size)
    runs, places, total = [word], [], VERSION.size
    for step in steps:
        one = held.tensors[step.key]
        places.append(total)
        for offset, length in joined(one.runs(step.source, step.sizes)):
            runs.append((base + offset, length))
            total += length
    runs.append(word)
    staged = bytearray(total + VERSION.size)
    way.read_ranges(
        Ranges(source.buffer.part.region, tuple(runs)), memory_of(staged).runs(), deadline
    )
    before, after = VERSION.unpack_from(staged, 0)[0], VERSION.unpack_from(staged, total)[0]
    if before != version or after != version:
        return False
    memory = memoryview(staged)
    for step, place in zip(steps, places, strict=True):
        one = held.tensors[step.key]
        size = _num(step.sizes) * one.item_bytes
        # A copy: torch wants aligned elements.
        part = view_of(
            memoryview(bytearray(memory[place : place + size])), 0, one.dtype, step.sizes
        )
        targets[step.key][box(step.target, step.sizes)].copy_(part)
    return True
