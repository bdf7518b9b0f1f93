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
"""How many hosts one copy serves at a time."""

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

    ``halves`` are by rank; ``held`` is ``None`` if the reader's description is up to date.
    """

    version: int
    epoch: int
    halves: tuple[int, ...]
    held: tuple[Held, ...] | None


@dataclass(frozen=True)
class Source:
    """Where a reader gets a rank's part.

    ``kind`` is "map" for a slab of this host, "copy" for a copy that the reader must make for its
    host, "direct" for the bytes that it needs alone, or "gone" if no process that had it lives.
    """

    kind: str
    holder: int
    place: SlabPlace
    buffer: RDMABuffer
    half: int


@dataclass
class _Rank:
    held: Held
    uid: str
    recent: dict[int, int] = field(default_factory=dict)


@dataclass
class _Holder:
    number: int
    machine: str
    uid: str
    place: SlabPlace
    buffer: RDMABuffer
    half: int
    num_served: int = 0


@dataclass
class _Spread:
    """The hosts that have one rank's part of one version, and those that are copying it."""

    holders: list[_Holder]
    copying: dict[str, tuple[str, int]] = field(default_factory=dict)


class Directory(Actor):
    """The directory of one state dict, which processes find by its name."""

    def __init__(self) -> None:
        self._num_ranks = 0
        self._epoch = 0
        self._ranks: dict[int, _Rank] = {}
        self._readers: dict[str, set[str]] = {}
        self._spreads: dict[tuple[int, int], _Spread] = {}
        self._next_holder = 0
        self._changed = asyncio.Condition()

    @concurrent_endpoint
    async def last_of(self, rank: int) -> int:
        """Return the last version that a rank has published; 0 if none."""
        found = self._ranks.get(rank)
        return max(found.recent, default=0) if found is not None else 0

    @concurrent_endpoint
    async def publish(
        self, rank: int, num_ranks: int, version: int, half: int, held: Held | None, uid: str
    ) -> None:
        """Note that a rank has filled a half of its slab with a version.

        ``held`` describes the rank's part if that is new.
        """
        async with self._changed:
            if num_ranks != self._num_ranks:
                self._ranks.clear()
                self._num_ranks = num_ranks
            known = self._ranks.get(rank)
            if held is not None:
                recent = dict(known.recent) if known is not None else {}
                # The other half of what it had is gone with the process that had it.
                self._ranks[rank] = known = _Rank(held, uid, dict.fromkeys(recent, -1))
                self._epoch += 1
            if known is None or known.uid != uid:
                raise RuntimeError(
                    f"rank {rank} is published by another process by now: one process a rank "
                    "publishes under one name. Give this one another rank, or another name"
                )
            known.recent = {v: h for v, h in known.recent.items() if h not in (half, -1)}
            known.recent[version] = half
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
        common = set.intersection(
            *({v for v, half in one.recent.items() if half >= 0} for one in self._ranks.values())
        )
        return max(common, default=0)

    @concurrent_endpoint
    async def look(self, at_least: int, known_epoch: int, seconds: float) -> WholeVersion | None:
        """Wait until the newest version is at least ``at_least``, and return it; ``None`` after
        ``seconds``."""
        deadline = time.monotonic() + seconds
        async with self._changed:
            while (newest := self._newest()) < max(1, at_least):
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                await _wait(self._changed, left)
            ranks = [self._ranks[rank] for rank in range(self._num_ranks)]
            held = tuple(one.held for one in ranks) if known_epoch != self._epoch else None
            halves = tuple(one.recent[newest] for one in ranks)
            return WholeVersion(newest, self._epoch, halves, held)

    @concurrent_endpoint
    async def source(
        self, version: int, rank: int, machine: str, uid: str, needs_most: bool, seconds: float
    ) -> Source | None:
        """Return where this reader gets the rank's part of this version; ``None`` if it is too
        old."""
        deadline = time.monotonic() + seconds
        async with self._changed:
            readers = self._readers.setdefault(machine, set())
            readers.add(uid)
            while time.monotonic() < deadline:
                spread = self._spread(version, rank)
                if spread is None:
                    return None
                for one in spread.holders:
                    if one.machine == machine and not _is_gone(one.uid):
                        return Source("map", one.number, one.place, one.buffer, one.half)
                copier = spread.copying.get(machine)
                if copier is not None and _is_gone(copier[0]):
                    self._served(spread, copier[1])
                    copier = spread.copying.pop(machine, None) and None
                free = [
                    one for one in spread.holders
                    if one.num_served < _DEGREE and not _is_gone(one.uid)
                ]  # fmt: skip
                if copier is None and free:
                    best = min(free, key=lambda one: one.num_served)
                    readers = {reader for reader in readers if not _is_gone(reader)}
                    is_alone = len(readers) == 1 and not needs_most
                    if not is_alone:
                        best.num_served += 1
                        spread.copying[machine] = uid, best.number
                    kind = "direct" if is_alone else "copy"
                    return Source(kind, best.number, best.place, best.buffer, best.half)
                if all(_is_gone(one.uid) for one in spread.holders):
                    held = self._ranks[rank].held
                    return Source("gone", 0, held.place, held.buffer, 0)
                await _wait(self._changed, _LOOK_SECONDS)
        return None

    def _spread(self, version: int, rank: int) -> _Spread | None:
        found = self._spreads.get((version, rank))
        owner = self._ranks.get(rank)
        if found is None and owner is not None and owner.recent.get(version, -1) >= 0:
            held = owner.held
            first = self._new_holder(
                held.place.machine, owner.uid, held.place, held.buffer, owner.recent[version]
            )
            found = self._spreads[version, rank] = _Spread([first])
        return found

    def _new_holder(
        self, machine: str, uid: str, place: SlabPlace, buffer: RDMABuffer, half: int
    ) -> _Holder:
        self._next_holder += 1
        return _Holder(
            number=self._next_holder,
            machine=machine,
            uid=uid,
            place=place,
            buffer=buffer,
            half=half,
        )

    @concurrent_endpoint
    async def copied(
        self, version: int, rank: int, uid: str, place: SlabPlace, buffer: RDMABuffer, half: int
    ) -> None:
        """Note that a reader has made the copy for its host."""
        async with self._changed:
            spread = self._spreads.get((version, rank))
            if spread is not None:
                _, number = spread.copying.pop(place.machine, ("", 0))
                self._served(spread, number)
                spread.holders.append(self._new_holder(place.machine, uid, place, buffer, half))
            self._changed.notify_all()

    @concurrent_endpoint
    async def failed(self, version: int, rank: int, machine: str, holder: int) -> None:
        """Note that a reader could not read from this process, so that no other reader tries it."""
        async with self._changed:
            spread = self._spreads.get((version, rank))
            if spread is not None:
                if spread.copying.get(machine, ("", 0))[1] == holder:
                    del spread.copying[machine]
                spread.holders = [one for one in spread.holders if one.number != holder]
            self._changed.notify_all()

    def _served(self, spread: _Spread, number: int) -> None:
        for one in spread.holders:
            if one.number == number:
                one.num_served -= 1


def _is_gone(uid: str) -> bool:
    return process.current().node.failure_of(uid) is not None


async def _wait(condition: asyncio.Condition, seconds: float) -> None:
    """Wait for a change, for at most ``seconds``."""
    try:
        await asyncio.wait_for(condition.wait(), seconds)
    except asyncio.TimeoutError:
        pass
