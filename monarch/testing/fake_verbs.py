"""A fake of libibverbs: queue pairs of this process move bytes, and fail when a test says so."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections import deque
from collections.abc import Sequence

from monarch.rdma.ways.verbs.library import (
    READ,
    REMOTE_ACCESS_ERROR,
    SUCCESS,
    QueuePairInfo,
    VerbsFailed,
    WorkRequest,
)

_FLUSHED = 5


class FakeVerbs:
    """A library with one device, whose port is connected to itself."""

    name = "fake"

    def __init__(self) -> None:
        self.devices = ["fake0"]
        #: The statuses of the next completions; then all succeed.
        self.statuses: deque[int] = deque()
        #: The most completions that one poll returns.
        self.most_polled = 1000
        #: How many registrations succeed before memory is short.
        self.num_registrations_left = 2**31
        #: Devices that were closed.
        self.num_closed = 0
        self.is_port_up = True
        #: Registered memory, as (address, length), by key.
        self.registered: dict[int, tuple[int, int]] = {}
        #: Memory of GPUs that was exported, with how far it is from its address there, by key.
        self.exported: dict[int, tuple[mmap.mmap, int]] = {}
        #: Queue pairs that are not closed, by number.
        self.pairs: dict[int, FakeQueuePair] = {}
        #: Work requests that were posted.
        self.num_posted = 0
        self.numbers = itertools.count(1)

    def shift_of(self, rkey: int) -> int:
        """Return how far registered memory really is from its address; 0 unless it is exported GPU
        memory.
        """
        return self.exported[rkey][1] if rkey in self.exported else 0

    def list_devices(self) -> list[str]:
        return list(self.devices)

    def open(self, name: str) -> FakeVerbsDevice:
        return FakeVerbsDevice(self, name)


class FakeKeys:
    def __init__(self, world: FakeVerbs, address: int, length: int) -> None:
        self._world = world
        self.lkey = self.rkey = next(world.numbers)
        world.registered[self.rkey] = address, length

    def close(self) -> None:
        self._world.registered.pop(self.rkey, None)
        self._world.exported.pop(self.rkey, None)


class FakeVerbsDevice:
    def __init__(self, world: FakeVerbs, name: str) -> None:
        self.name = name
        self._world = world

    def register(self, address: int, length: int) -> FakeKeys:
        if self._world.num_registrations_left <= 0:
            raise VerbsFailed("Cannot allocate memory")
        self._world.num_registrations_left -= 1
        return FakeKeys(self._world, address, length)

    def register_dma_buf(self, fd: int, offset: int, address: int, length: int) -> FakeKeys:
        keys = self.register(address, length)
        memory = mmap.mmap(fd, 0)
        mapped = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + offset
        self._world.exported[keys.rkey] = memory, mapped - address
        return keys

    def queue_pair(self, most_work: int) -> FakeQueuePair:
        return FakeQueuePair(self._world, most_work)

    def close(self) -> None:
        self._world.num_closed += 1


class FakeQueuePair:
    def __init__(self, world: FakeVerbs, most_work: int) -> None:
        self._world = world
        self._most_work = most_work
        self._remote: int | None = None
        self._is_broken = self._is_closed = False
        self._done: deque[tuple[int, int]] = deque()
        self.info = QueuePairInfo(next(world.numbers), 7, bytes(16), 0, 5)
        world.pairs[self.info.number] = self

    def connect(self, remote: QueuePairInfo) -> None:
        if not self._world.is_port_up:
            raise VerbsFailed("the port is down")
        self._remote = remote.number

    def post(self, work: WorkRequest) -> None:
        self._check()
        if self._remote is None or len(self._done) >= self._most_work:
            raise VerbsFailed("Cannot allocate memory")
        self._world.num_posted += 1
        status = self._status(work)
        if status == SUCCESS:
            source, target = work.remote + self._world.shift_of(work.rkey), work.local
            if work.kind != READ:
                source, target = target, source
            ctypes.memmove(target, source, work.length)
        else:
            self._is_broken = True
        self._done.append((work.number, status))

    def _status(self, work: WorkRequest) -> int:
        if self._is_broken:
            return _FLUSHED
        if self._world.statuses and (status := self._world.statuses.popleft()) != SUCCESS:
            return status
        if self._remote not in self._world.pairs:
            return 12  # The retries are used up.
        for key, address in ((work.lkey, work.local), (work.rkey, work.remote)):
            begin, length = self._world.registered.get(key, (0, 0))
            if not begin <= address <= address + work.length <= begin + length:
                return REMOTE_ACCESS_ERROR
        return SUCCESS

    def poll(self, most: int) -> Sequence[tuple[int, int]]:
        self._check()
        num = min(most, self._world.most_polled, len(self._done))
        return [self._done.popleft() for _ in range(num)]

    def _check(self) -> None:
        assert not self._is_closed, "a real one would end the process"

    def close(self) -> None:
        self._check()
        self._is_closed = True
        self._world.pairs.pop(self.info.number, None)
