"""`SharedStateDict`: weights that a trainer publishes and others fetch."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    box,
    describe,
    local_of,
    pieces_wanted,
    tensors_of,
    view_of,
)
from monarch.rdma.weights.slab import (
    HEADER_BYTES,
    ON_DEVICE,
    VERSION,
    Slab,
    SlabPlace,
    version_run,
)
from monarch.runtime import process

_Tensors = Mapping[str, Any]
_OnGpu = Mapping[str, LocalMemory]

_LOOK_SECONDS = 5.0
_MOST_OF_FREE = 0.25
"""A copy on a GPU takes at most this part of what is free there."""

_MOST = 0.5
"""A reader that needs more than this part of a rank's bytes copies all of them for its host."""


class SharedStateDict:
    """A state dict with a name, shared by all processes of the program.

    The ranks of a trainer ``publish`` it, each its own shards; a version exists once all ranks have
    published it. Readers with any layout ``fetch`` the newest one. Pickled, it is a reference.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()  # One publish or fetch at a time.
        self._publisher: _Publisher | None = None
        self._reader: _Fetcher | None = None

    def publish(
        self, state: Any, *, rank: int = 0, num_ranks: int = 1, version: int | None = None
    ) -> Future[int]:
        """Make ``state``, a module or a mapping of tensors (DTensors, too), the next version.

        The future has the version's number, and is done when the tensors have been copied: they may
        change from then on. Readers see the version when all of ``num_ranks`` have published it.
        Versions count from 1; ``version``, if given, must be greater than the last one. Raises
        ``TypeError`` for values that are no tensors.
        """
        tensors = tensors_of(state)
        on_gpu = _on_gpu(tensors)

        def work(way: Ways) -> int:
            with self._lock:
                return self._publisher_of(rank, num_ranks).publish(way, tensors, on_gpu, version)

        return start(ways(), work, is_waiting=True)

    def prepare(self, state: Any, *, rank: int = 0, num_ranks: int = 1) -> Future[None]:
        """Allocate ahead of time the memory into which ``publish`` will copy ``state``.

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
        any placement, or the whole tensor. The future has the version's number: all bytes are of
        that version. It raises ``TimeoutError`` if no such version is published in time,
        ``KeyError`` for a key that is not published, ``RemoteMemoryError`` if the processes that
        have the bytes are gone.
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

        The numbers grow. If several versions appear between two steps of the loop, it gets only the
        last.
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
    return get_or_spawn_controller(f"shared state dict {name}", Directory).get()


def _look(directory: Any, at_least: int, epoch: int, deadline: float) -> WholeVersion:
    """Wait for a version that is at least ``at_least``, and return the newest version.

    Raises ``TimeoutError`` at the deadline.
    """
    while True:
        seconds_left = deadline - time.monotonic()
        seconds = max(0.0, min(seconds_left, _LOOK_SECONDS))
        newest: WholeVersion | None = directory.look.call_one(at_least, epoch, seconds).get()
        if newest is not None:
            return newest
        if seconds_left <= 0:
            raise TimeoutError(
                f"no version {max(1, at_least)} was published in time: it takes publish() of all "
                "ranks of the trainer. See that they come to it, or give a longer timeout="
            )


def _on_gpu(tensors: _Tensors) -> dict[str, LocalMemory]:
    """Return this rank's memory of the tensors on GPUs, as it is after the caller's queued work.

    Torch copies the other tensors.
    """
    memories = {key: _memory_on_gpu(local_of(tensor)) for key, tensor in tensors.items()}
    return {key: memory.as_of_now() for key, memory in memories.items() if memory is not None}


def _memory_on_gpu(tensor: Any) -> LocalMemory | None:
    try:
        memory = memory_of(tensor)
    except TypeError:
        return None
    return memory if memory.device != "cpu" and memory.nbytes else None


def _marks_of(on_gpu: _OnGpu) -> list[GpuMark]:
    return [mark for memory in on_gpu.values() for mark in memory.ready]


class _Publisher:
    """One rank's part of a state dict: its slab, and where the tensors are in it."""

    def __init__(self, directory: Any, rank: int, num_ranks: int) -> None:
        self.key = rank, num_ranks
        self._directory = directory
        #: The last version that this rank has published; 0 before the first.
        self._last: int = directory.last_of.call_one(rank).get()
        #: The host's memory for the tensors; ``None`` before the first state dict.
        self._slab: Slab | None = None
        #: The description of this rank's part, as readers get it.
        self._held: Held | None = None
        #: Whether the directory has that description.
        self._is_described = False
        #: The GPU that has all tensors; -1 if there is no such GPU.
        self._device = -1
        #: The copy of a half on that GPU; ``None`` if there was no room for it.
        self._device_memory: LocalMemory | None = None

    def prepare(self, way: Ways, tensors: _Tensors, on_gpu: _OnGpu) -> tuple[Slab, Held]:
        """Return the slab for ``tensors``, and the description of where they are in it.

        The existing slab is used again if its tensors have the same shapes, shards and dtypes.
        """
        descriptions, num_bytes = describe(tensors)
        device = _one_device(tensors, on_gpu)
        if self._slab is None or self._held is None or descriptions != self._held.tensors:
            self._slab = Slab.create(num_bytes, machine_id())
            self._device_memory = None
            buffer = RDMABuffer(memoryview(self._slab.memory))
            self._held = Held(descriptions, self._slab.place, buffer)
            self._is_described = False
            self._device = device
            if device >= 0:
                self._copy_on(device, self._slab.half_bytes)
        if on_gpu:
            self._slab.pin(way.workers)
        return self._slab, self._held

    def _copy_on(self, device: int, num_bytes: int) -> None:
        """Allocate a copy on the GPU, unless that needs more than a quarter of its free memory."""
        assert self._held is not None
        try:
            if num_bytes > gpu().free_bytes(device) * _MOST_OF_FREE:
                return
            array = gpu().allocate(num_bytes, device)
        except (RuntimeError, MemoryError):
            return  # Readers use the host's memory.
        self._device_memory = memory_of(array)
        self._held = replace(self._held, on_device=RDMABuffer(array))

    def publish(self, way: Ways, tensors: _Tensors, on_gpu: _OnGpu, version: int | None) -> int:
        number = self._last + 1 if version is None else version
        if number <= self._last:
            raise ValueError(
                f"version {number} is not newer than {self._last}: leave it out, or count on"
            )
        slab, held = self.prepare(way, tensors, on_gpu)
        rank, num_ranks = self.key
        half = number % 2
        copy = None
        if self._device_memory is not None and _one_device(tensors, on_gpu) == self._device:
            copy = part_of(self._device_memory)
            self._copy_across(copy, slab, held, on_gpu, number)
        with slab.filling(half, number) as memory:
            if copy is not None:
                copy_to_host(copy, memory_of(memory).runs(), way.workers)
            else:
                _copy_each(way, memory, held, tensors, on_gpu)
        uid = process.current().node.uid
        news = None if self._is_described else held
        self._directory.publish.call_one(rank, num_ranks, number, half, news, uid).get()
        self._is_described = True
        self._last = number
        return number

    def _copy_across(
        self, copy: DevicePart, slab: Slab, held: Held, on_gpu: _OnGpu, number: int
    ) -> None:
        """Copy the tensors to the copy on the GPU, which has the form of a half."""
        with slab.filling(ON_DEVICE, number):
            target = [
                place
                for tensor in (held.tensors[key] for key in on_gpu)
                for place in copy.cut(tensor.offset, tensor.offset + tensor.nbytes).places
            ]
            source = [place for memory in on_gpu.values() for place in part_of(memory).places]
            copy_across(DevicePart(source, _marks_of(on_gpu)), DevicePart(target))


def _one_device(tensors: _Tensors, on_gpu: _OnGpu) -> int:
    """Return the GPU that has all tensors with bytes; -1 if there is no such GPU."""
    if any(key not in on_gpu and local_of(tensor).numel() for key, tensor in tensors.items()):
        return -1
    devices = {gpu().device_of(memory.keep) for memory in on_gpu.values()}
    return devices.pop() if len(devices) == 1 else -1


def _copy_each(way: Ways, half: memoryview, held: Held, tensors: _Tensors, on_gpu: _OnGpu) -> None:
    """Copy each tensor to its place in a half; GPU tensors are copied together at the end."""
    source: list[StoragePlace] = []
    runs: list[Run] = []
    start = memory_of(half).address
    for key, tensor in tensors.items():
        target = held.tensors[key]
        if key in on_gpu:
            source += part_of(on_gpu[key]).places
            runs.append((start + target.offset, target.nbytes))
        else:
            view_of(half, target.offset, target.dtype, target.local).copy_(local_of(tensor))
    if source:
        copy_to_host(DevicePart(source, _marks_of(on_gpu)), runs, way.workers)


class _Replaced(Exception):
    """A newer version replaced the version that was being copied."""


class _Fetcher:
    """Fetches for one process. It keeps the descriptions of what is published, and mapped slabs."""

    def __init__(self, directory: Any) -> None:
        self._directory = directory
        #: The number of the descriptions in ``_held``; 0 before the first.
        self._epoch = 0
        #: What each rank publishes.
        self._held: tuple[Held, ...] = ()
        #: The pieces of each key that each rank has.
        self._pieces: list[dict[str, Sequence[ShardPiece]]] = []
        #: Slabs of other processes of this host.
        self._mapped: dict[SlabPlace, Slab] = {}
        #: This process's copies of ranks' parts, by rank.
        self._copies: dict[int, tuple[Slab, RDMABuffer]] = {}
        self._uid = process.current().node.uid

    def fetch(self, way: Ways, tensors: _Tensors, version: int, deadline: float) -> int:
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
            is_whole = True
            for rank, rank_steps in by_rank.items():
                part = _PartFetch(
                    way=way,
                    version=snapshot.version,
                    held=self._held[rank],
                    steps=rank_steps,
                    targets=targets,
                    deadline=deadline,
                )
                try:
                    is_whole = self._fetch_part(part, rank, snapshot.halves[rank])
                except RemoteMemoryError as raised:
                    error, is_whole = raised, False
                    lost.add(rank)
                if not is_whole:
                    break
            if is_whole:
                return snapshot.version
            if time.monotonic() > deadline:
                raise error or TimeoutError(
                    "versions came faster than they could be fetched: publish less often, fetch "
                    "fewer keys, or give a longer timeout="
                )

    def _learn(self, snapshot: WholeVersion) -> None:
        if snapshot.held is not None:
            self._held, self._epoch = snapshot.held, snapshot.epoch
            self._pieces = [
                {key: tensor.pieces for key, tensor in held.tensors.items()} for held in self._held
            ]
            places = {held.place for held in self._held}
            self._mapped = {p: slab for p, slab in self._mapped.items() if p in places}

    def _check_dtypes_are_known(self) -> None:
        torch = sys.modules["torch"]
        for held in self._held:
            for key, tensor in held.tensors.items():
                if not hasattr(torch, tensor.dtype):
                    raise TypeError(
                        f"{key!r} has a dtype that torch {torch.__version__} does not know: "
                        f"{tensor.dtype}. Use the trainer's version, or publish it as another dtype"
                    )

    def _fetch_part(self, part: _PartFetch, rank: int, half: int) -> bool:
        """Copy one rank's part of the version ``part.version``.

        Returns False if that version was replaced, or the time was up, before the copy was done.
        """
        place, version = part.held.place, part.version
        if place.machine == machine_id() and (slab := self._map(place)) is not None:
            part.copy_across(slab)
            if any(_memory_on_gpu(part.targets[step.key]) is not None for step in part.steps):
                slab.pin(part.way.workers)
            return part.unpack(slab, half)
        source: Source | None = self._directory.source.call_one(
            version, rank, machine_id(), self._uid, part.needs_most, part.seconds_left()
        ).get()
        if source is None:
            return False
        if source.kind == "gone":
            raise source.buffer.part.region.error(
                f"all that had version {version} have ended. Fetch again, once it or a later one "
                "has been published"
            )
        failed = version, rank, machine_id(), source.holder
        try:
            if source.kind == "map" and (slab := self._map(source.place)) is not None:
                return part.unpack(slab, source.half)
            if source.kind == "copy":
                try:
                    slab, half = self._copy(part.way, source, rank, version, part.deadline)
                except _Replaced:
                    self._directory.failed.call_one(*failed).get()
                    return False
                return part.unpack(slab, half)
            return part.read(source)
        except RemoteMemoryError:
            self._directory.failed.call_one(*failed).get()
            if source.place == place:
                raise
            return False  # Another process has it, too.

    def _map(self, place: SlabPlace) -> Slab | None:
        """Map the slab of a process of this host; return ``None`` if that fails."""
        if place not in self._mapped:
            try:
                self._mapped[place] = Slab.of_peer(place)
            except OSError:
                return None
        return self._mapped[place]

    def _copy(
        self, way: Ways, source: Source, rank: int, version: int, deadline: float
    ) -> tuple[Slab, int]:
        """Copy all of a rank's part into a slab of this process, from which other readers can copy.

        Returns the slab and the half. Raises ``_Replaced`` if the source got a newer version
        meanwhile.
        """
        size, half = source.place.half_bytes, version % 2
        copy = self._copies.get(rank)
        if copy is None or copy[0].half_bytes != size:
            slab = Slab.create(size, machine_id())
            copy = self._copies[rank] = slab, RDMABuffer(memoryview(slab.memory))
        slab, buffer = copy
        region = source.buffer.part.region
        start = HEADER_BYTES + source.half * size
        word = bytearray(VERSION.size)
        with slab.filling(half, version) as memory:
            way.read(Part(region, start, start + size), memory_of(memory).runs(), deadline)
            start, length = version_run(source.half)
            way.read(Part(region, start, start + length), memory_of(word).runs(), deadline)
            if VERSION.unpack(word) != (version,):
                raise _Replaced
        self._directory.copied.call_one(version, rank, self._uid, slab.place, buffer, half).get()
        return slab, half


@dataclass
class _PartFetch:
    """The copies that a fetch makes from one rank's part of a version.

    ``steps`` are the copies that have not been made yet, into the tensors ``targets``.
    """

    way: Ways
    version: int
    held: Held
    steps: list[CopyStep]
    targets: _Tensors
    deadline: float

    @property
    def needs_most(self) -> bool:
        """Whether the steps need most of the rank's bytes."""
        tensors = self.held.tensors
        num_bytes = sum(tensors[step.key].item_bytes * math.prod(step.sizes) for step in self.steps)
        return num_bytes > _MOST * self.held.place.half_bytes

    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def copy_across(self, slab: Slab) -> None:
        """Copy from the publisher's GPU to GPUs of this process, if that GPU has the version.

        The steps that have been copied so are removed from ``steps``.
        """
        if self.held.on_device is None:
            return
        other_steps: list[CopyStep] = []
        ranges: list[Run] = []
        places: list[StoragePlace] = []
        for step in self.steps:
            tensor, target = self.held.tensors[step.key], self.targets[step.key]
            memory = _memory_on_gpu(target[box(step.target, step.sizes)])
            if memory is None or str(target.dtype) != f"torch.{tensor.dtype}":
                other_steps.append(step)
                continue
            ranges += joined(tensor.runs(step.source, step.sizes))
            places += part_of(memory).places
        if not places:
            return
        source = Ranges(self.held.on_device.part.region, tuple(ranges))
        with slab.reading(ON_DEVICE, self.version, self.deadline) as half:
            if half is None:
                return
            try:
                is_done = self.way.read_across(source, DevicePart(places), self.deadline)
            except RemoteMemoryError:
                return  # The publisher has ended: what it had in the host's memory has not.
            if is_done and slab.version(ON_DEVICE) == self.version:
                self.steps = other_steps

    def unpack(self, slab: Slab, half: int) -> bool:
        """Copy from a slab of this host.

        Returns whether the slab still had the version after the copy.
        """
        with slab.reading(half, self.version, self.deadline) as memory:
            if memory is None:
                return False
            for step in self.steps:
                tensor = self.held.tensors[step.key]
                whole = view_of(memory, tensor.offset, tensor.dtype, tensor.local)
                self._fill(step, whole[box(step.source, step.sizes)])
            # A reader that was stopped for long may have been overtaken all the same.
            return slab.version(half) == self.version

    def read(self, source: Source) -> bool:
        """Read from another host only the bytes that the steps need.

        Returns whether the source still had the version after the read.
        """
        base = HEADER_BYTES + source.half * source.place.half_bytes
        version = version_run(source.half)
        runs, offsets, total = [version], [], VERSION.size
        for step in self.steps:
            offsets.append(total)
            for offset, length in joined(self.held.tensors[step.key].runs(step.source, step.sizes)):
                runs.append((base + offset, length))
                total += length
        runs.append(version)
        staged = bytearray(total + VERSION.size)
        ranges = Ranges(source.buffer.part.region, tuple(runs))
        self.way.read_ranges(ranges, memory_of(staged).runs(), self.deadline)
        if {VERSION.unpack_from(staged, at)[0] for at in (0, total)} != {self.version}:
            return False
        for step, offset in zip(self.steps, offsets, strict=True):
            tensor = self.held.tensors[step.key]
            size = math.prod(step.sizes) * tensor.item_bytes
            # A copy: torch wants aligned elements.
            aligned = memoryview(staged[offset : offset + size])
            self._fill(step, view_of(aligned, 0, tensor.dtype, step.sizes))
        return True

    def _fill(self, step: CopyStep, part: Any) -> None:
        self.targets[step.key][box(step.target, step.sizes)].copy_(part)
