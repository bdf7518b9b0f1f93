"""The shared memory with which this process sends large data: segments, regions, and their holders.

A region is free again after the sender is done with it and every receiver has released it. New
memory costs more than the copy into it, so regions are reused, and segments are kept until no data
has been sent in them for a while.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable

from monarch.core.regions import Regions
from monarch.net.segment import NUM_HOLDS, PAGE_BYTES, Segment, view_region
from monarch.wire.address import Uid

_SEGMENT_BYTES = 256 * 2**20
_NUM_LOOKS = 16
"""How many regions each placement looks at, to find those that are free again."""


class _Region:
    """A piece of a segment that is in use."""

    __slots__ = ("holds", "is_ours", "offset", "room", "size")

    def __init__(self, room: _Room, offset: int, size: int) -> None:
        self.room = room
        self.offset = offset
        self.size = size
        self.holds: list[tuple[int, Uid]] = []
        self.is_ours = True


class _Room:
    """A segment and the regions in use in it."""

    def __init__(self, number: int, segment: Segment) -> None:
        self.number = number
        self.segment = segment
        self.view = memoryview(segment.shared)
        self.regions = Regions(NUM_HOLDS, segment.size, PAGE_BYTES)
        self.free_holds = list(range(NUM_HOLDS - 1, -1, -1))
        self.last_used = 0.0


class Placed:
    """A region of the sender, reserved for as long as this object lives."""

    __slots__ = ("_pool", "_region", "memory", "number", "offset", "segment", "size")

    def __init__(self, pool: SharedPool, region: _Region) -> None:
        self._pool = pool
        self._region = region
        #: The segment of the region, and its number.
        self.segment = region.room.segment
        self.number = region.room.number
        self.offset = region.offset
        self.size = region.size
        self.memory = region.room.view[region.offset : region.offset + region.size]

    def hold(self, receiver: Uid) -> int | None:
        """Return a new hold for ``receiver``; ``None`` if the segment has too many."""
        return self._pool.hold(self._region, receiver)

    def view(self) -> memoryview | None:
        """Return a view of the region for this process, which holds the region like any receiver.

        None if the segment has no free hold.
        """
        hold = self._pool.hold(self._region, "")
        if hold is None:
            return None
        return view_region(self.segment, self.offset, self.size, hold, private=False)

    def __del__(self) -> None:
        # This may run in the middle of anything, so it takes no lock: the pool notices later.
        self._region.is_ours = False


class SharedPool:
    """The pool of regions. From any thread. ``limit_bytes`` bounds all segments together."""

    def __init__(
        self,
        limit_bytes: int,
        segment_bytes: int = _SEGMENT_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._rooms: dict[int, _Room] = {}
        self._in_use: deque[_Region] = deque()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._rooms)

    @property
    def num_in_use(self) -> int:
        """Return how many regions are in use."""
        with self._lock:
            self._collect(len(self._in_use))
            return len(self._in_use)

    def place(self, size: int) -> Placed | None:
        """Return a region of ``size`` bytes; ``None`` if the pool is full, or there is no
        memory."""
        with self._lock:
            self._collect(_NUM_LOOKS)
            region = self._find(size)
            if region is None:
                self._collect(len(self._in_use))
                region = self._find(size) or self._grow(size)
            if region is None:
                return None
            self._in_use.append(region)
            placed = Placed(self, region)
        try:
            # Without the lock: it takes a second for a few GiB.
            placed.segment.back(region.offset + size)
        except OSError:
            return None
        return placed

    def _find(self, size: int) -> _Region | None:
        for room in self._rooms.values():
            offset = room.regions.take(size)
            if offset is not None:
                room.last_used = self._clock()
                return _Region(room, offset, size)
        return None

    def _grow(self, size: int) -> _Region | None:
        free = self._limit_bytes - sum(room.segment.size for room in self._rooms.values())
        needed = NUM_HOLDS + size + PAGE_BYTES
        if needed > free:
            return None
        try:
            segment = Segment.create(min(max(self._segment_bytes, needed), free) & -PAGE_BYTES)
            segment.back(NUM_HOLDS)
        except OSError:
            return None
        number = next(self._numbers)
        self._rooms[number] = _Room(number, segment)
        return self._find(size)

    def _collect(self, num_looks: int) -> None:
        """Free regions that no receiver holds any more; look at ``num_looks`` regions at most."""
        for _ in range(min(num_looks, len(self._in_use))):
            region = self._in_use.popleft()
            if region.is_ours or any(region.room.segment.shared[hold] for hold, _ in region.holds):
                self._in_use.append(region)
                continue
            room = region.room
            room.free_holds += [hold for hold, _ in region.holds]
            room.regions.give_back(region.offset)

    def hold(self, region: _Region, receiver: Uid) -> int | None:
        with self._lock:
            if not region.room.free_holds:
                return None
            number = region.room.free_holds.pop()
            region.room.segment.shared[number] = 1
            region.holds.append((number, receiver))
            return number

    def forget(self, receiver: Uid) -> None:
        """Free the regions that ``receiver`` holds, because that process is gone."""
        with self._lock:
            for region in self._in_use:
                for number, holder in region.holds:
                    if holder == receiver:
                        region.room.segment.shared[number] = 0

    def let_go(self, number: int, hold: int, receiver: Uid) -> None:
        """Free one hold of a process that never got the region."""
        with self._lock:
            for region in self._in_use:
                if region.room.number == number and (hold, receiver) in region.holds:
                    region.room.segment.shared[hold] = 0

    def trim(self, now: float, idle_seconds: float) -> list[int]:
        """Drop the segments that have been empty for ``idle_seconds``.

        Return their numbers, so that the processes that map them can be told.
        """
        with self._lock:
            self._collect(len(self._in_use))
            idle = [
                number
                for number, room in self._rooms.items()
                if room.regions.is_unused and now - room.last_used >= idle_seconds
            ]
            for number in idle:
                del self._rooms[number]
            return idle

    def close(self) -> None:
        """Give up all segments; views of them stay valid."""
        with self._lock:
            self._rooms.clear()
            self._in_use.clear()
            self._limit_bytes = 0
