"""The directory of a published state dict: which processes have each version of it.

It is one actor in the client's process. Publishers and readers report to it, and it answers from
their reports; it never sees the bytes. On each host it lets one reader at a time fetch a rank's
part, from a host that has it and serves few others; the other readers of that host share the copy.
So a version spreads along a tree.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from monarch.actor import Actor, concurrent_endpoint
from monarch.rdma.buffer import RDMABuffer
from monarch.rdma.weights.shards import HeldTensor
from monarch.rdma.weights.slab import SlabPlace
from monarch.runtime import process

_DEGREE = 2
"""How many hosts copy from the same process at a time."""

_LOOK_SECONDS = 0.25
_KEPT_VERSIONS = 2


@dataclass(frozen=True)
class Held:
    """The part of a state dict that one rank publishes: its tensors, and where their bytes are.

    ``on_device`` is a copy of the newest version on the rank's GPU, if there was room for it.
    """

    tensors: dict[str, HeldTensor]
    place: SlabPlace
    buffer: RDMABuffer
    on_device: RDMABuffer | None = None


@dataclass(frozen=True)
class WholeVersion:
    """A version that all ranks have published.

    ``halves`` says, by rank, which half of the rank's slab has it. ``held`` describes the ranks'
    parts; it is ``None`` if the reader knows the description of this ``epoch``.
    """

    version: int
    epoch: int
    halves: tuple[int, ...]
    held: tuple[Held, ...] | None


@dataclass(frozen=True)
class Source:
    """Where a reader gets a rank's part.

    ``kind`` is "map" for a slab of this host; "copy" if the reader must first copy the whole part
    to its host; "direct" if it must read only the bytes that it needs; or "gone" if no process that
    had the part is alive.
    """

    kind: str
    holder: int
    place: SlabPlace
    buffer: RDMABuffer
    half: int


@dataclass
class _Rank:
    """One rank's part of the state dict; ``uid`` is of the process that publishes it."""

    held: Held
    uid: str
    #: The half of each version in its slab; -1 for a version that was lost with its process.
    halves: dict[int, int] = field(default_factory=dict)


@dataclass
class _Holder:
    """A process that has one rank's part of one version, and the slab and half that it is in."""

    number: int
    machine: str
    uid: str
    place: SlabPlace
    buffer: RDMABuffer
    half: int
    #: How many hosts copy from it now.
    num_served: int = 0

    def as_source(self, kind: str) -> Source:
        return Source(kind, self.number, self.place, self.buffer, self.half)


@dataclass
class _Spread:
    """The processes that have one rank's part of one version."""

    holders: list[_Holder]
    #: The process that copies it for its host, and the number of its source, by machine.
    copying: dict[str, tuple[str, int]] = field(default_factory=dict)


class Directory(Actor):
    """Knows which processes have each version of one state dict.

    It is an actor, which processes find by the name of the state dict.
    """

    def __init__(self) -> None:
        self._num_ranks = 0
        #: Grows when a rank's description changes.
        self._epoch = 0
        self._ranks: dict[int, _Rank] = {}
        #: The uids of the processes that have fetched, by machine.
        self._readers: dict[str, set[str]] = {}
        #: Where the parts of the latest versions are, by version and rank.
        self._spreads: dict[tuple[int, int], _Spread] = {}
        self._last_holder = 0
        self._changed = asyncio.Condition()

    @concurrent_endpoint
    async def last_of(self, rank: int) -> int:
        """Return the last version that a rank has published; 0 if none."""
        return max(self._ranks[rank].halves, default=0) if rank in self._ranks else 0

    @concurrent_endpoint
    async def publish(
        self, rank: int, num_ranks: int, version: int, half: int, held: Held | None, uid: str
    ) -> None:
        """Record that a rank has filled a half of its slab with a version.

        ``held`` describes the rank's part, unless the description is unchanged. Raises
        ``RuntimeError`` if another process publishes this rank.
        """
        async with self._changed:
            if num_ranks != self._num_ranks:
                self._ranks.clear()
                self._num_ranks = num_ranks
            part = self._ranks.get(rank)
            if held is not None:
                # Earlier versions have ended with their slab.
                lost = dict.fromkeys(part.halves if part is not None else (), -1)
                self._ranks[rank] = part = _Rank(held, uid, lost)
                self._epoch += 1
            if part is None or part.uid != uid:
                raise RuntimeError(
                    f"rank {rank} is published by another process by now: one process a rank "
                    "publishes under one name. Give this one another rank, or another name"
                )
            part.halves = {v: h for v, h in part.halves.items() if h not in (half, -1)}
            part.halves[version] = half
            self._forget_old()
            self._changed.notify_all()

    def _forget_old(self) -> None:
        newest = self._newest()
        for version, rank in list(self._spreads):
            if version <= newest - _KEPT_VERSIONS:
                del self._spreads[version, rank]

    def _newest(self) -> int:
        """Return the newest version that every rank has published; 0 before the first."""
        if not self._num_ranks or len(self._ranks) < self._num_ranks:
            return 0
        versions = (
            {v for v, half in part.halves.items() if half >= 0} for part in self._ranks.values()
        )
        return max(set.intersection(*versions), default=0)

    @concurrent_endpoint
    async def look(self, at_least: int, known_epoch: int, seconds: float) -> WholeVersion | None:
        """Wait for a version that is at least ``at_least``, and return the newest version.

        Returns ``None`` if there is none after ``seconds``. ``known_epoch`` is the epoch of the
        description that the reader has.
        """
        deadline = time.monotonic() + seconds
        async with self._changed:
            while (newest := self._newest()) < max(1, at_least):
                seconds_left = deadline - time.monotonic()
                if seconds_left <= 0:
                    return None
                await _wait(self._changed, seconds_left)
            parts = [self._ranks[rank] for rank in range(self._num_ranks)]
            held = tuple(part.held for part in parts) if known_epoch != self._epoch else None
            halves = tuple(part.halves[newest] for part in parts)
            return WholeVersion(newest, self._epoch, halves, held)

    @concurrent_endpoint
    async def source(
        self, version: int, rank: int, machine: str, uid: str, needs_most: bool, seconds: float
    ) -> Source | None:
        """Return where this reader gets the rank's part of this version.

        ``needs_most`` says that the reader needs most of the part's bytes. Returns ``None`` if the
        version is too old, or after ``seconds``.
        """
        deadline = time.monotonic() + seconds
        async with self._changed:
            readers = self._readers.setdefault(machine, set())
            readers.add(uid)
            while time.monotonic() < deadline:
                spread = self._spread(version, rank)
                if spread is None:
                    return None
                alive = [holder for holder in spread.holders if not _is_gone(holder.uid)]
                for holder in alive:
                    if holder.machine == machine:
                        return holder.as_source("map")
                copier = spread.copying.get(machine)
                if copier is not None and _is_gone(copier[0]):
                    spread.copying.pop(machine)
                    self._served(spread, copier[1])
                free = [holder for holder in alive if holder.num_served < _DEGREE]
                if machine not in spread.copying and free:
                    best = min(free, key=lambda holder: holder.num_served)
                    readers = {reader for reader in readers if not _is_gone(reader)}
                    is_alone = len(readers) == 1 and not needs_most
                    if not is_alone:
                        best.num_served += 1
                        spread.copying[machine] = uid, best.number
                    return best.as_source("direct" if is_alone else "copy")
                if not alive:
                    held = self._ranks[rank].held
                    return Source("gone", 0, held.place, held.buffer, 0)
                await _wait(self._changed, _LOOK_SECONDS)
        return None

    def _spread(self, version: int, rank: int) -> _Spread | None:
        spread = self._spreads.get((version, rank))
        part = self._ranks.get(rank)
        if spread is None and part is not None and part.halves.get(version, -1) >= 0:
            held = part.held
            first = self._new_holder(part.uid, held.place, held.buffer, part.halves[version])
            spread = self._spreads[version, rank] = _Spread([first])
        return spread

    def _new_holder(self, uid: str, place: SlabPlace, buffer: RDMABuffer, half: int) -> _Holder:
        self._last_holder += 1
        return _Holder(self._last_holder, place.machine, uid, place=place, buffer=buffer, half=half)

    @concurrent_endpoint
    async def copied(
        self, version: int, rank: int, uid: str, place: SlabPlace, buffer: RDMABuffer, half: int
    ) -> None:
        """Record that a reader has made the copy for its host."""
        async with self._changed:
            spread = self._spreads.get((version, rank))
            if spread is not None:
                _, number = spread.copying.pop(place.machine, ("", 0))
                self._served(spread, number)
                spread.holders.append(self._new_holder(uid, place, buffer, half))
            self._changed.notify_all()

    @concurrent_endpoint
    async def failed(self, version: int, rank: int, machine: str, holder: int) -> None:
        """Record that a reader could not read from a holder: no other reader is sent to it."""
        async with self._changed:
            spread = self._spreads.get((version, rank))
            if spread is not None:
                if spread.copying.get(machine, ("", 0))[1] == holder:
                    del spread.copying[machine]
                spread.holders = [other for other in spread.holders if other.number != holder]
            self._changed.notify_all()

    def _served(self, spread: _Spread, number: int) -> None:
        for holder in spread.holders:
            if holder.number == number:
                holder.num_served -= 1


def _is_gone(uid: str) -> bool:
    return process.current().node.failure_of(uid) is not None


async def _wait(condition: asyncio.Condition, seconds: float) -> None:
    """Wait for a change, for at most ``seconds``."""
    try:
        await asyncio.wait_for(condition.wait(), seconds)
    except asyncio.TimeoutError:
        pass
