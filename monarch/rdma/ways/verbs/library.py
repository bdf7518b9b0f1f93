"""The interface to libibverbs, for its two bindings and for a fake: only what is used here."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from monarch.rdma.memory.layout import Run

READ, WRITE = "read", "write"
SUCCESS = 0
REMOTE_ACCESS_ERROR = 10
_PIECE_BYTES = 2**20


class VerbsFailed(Exception):
    """The library or the device refused a call; ``str()`` says why."""


@contextlib.contextmanager
def failing_by(error: type[Exception] | tuple[type[Exception], ...]) -> Iterator[None]:
    """Raise ``VerbsFailed`` in place of errors of the class ``error`` that the block raises."""
    try:
        yield
    except error as refusal:
        raise VerbsFailed(str(refusal)) from None


@dataclass(frozen=True)
class QueuePairInfo:
    """The facts that the other end needs to connect. ``gid`` has 16 bytes, ``mtu`` is libibverbs'
    code."""

    number: int
    psn: int
    gid: bytes
    lid: int
    mtu: int


@dataclass(frozen=True)
class WorkRequest:
    """One RDMA read or write; its completion carries ``number``."""

    number: int
    kind: str
    local: int
    lkey: int
    remote: int
    rkey: int
    length: int


class MemoryKeys(Protocol):
    """The local and remote key of registered memory."""

    lkey: int
    rkey: int

    def close(self) -> None: ...


class QueuePair(Protocol):
    """A reliable connection (RC). Methods raise ``VerbsFailed`` if the device refuses a call."""

    info: QueuePairInfo

    def connect(self, remote: QueuePairInfo) -> None:
        """Connect to the other end: afterwards the pair can send (state RTS)."""

    def post(self, work: WorkRequest) -> None: ...

    def poll(self, most: int) -> Sequence[tuple[int, int]]:
        """Return at most ``most`` completions: the number of each, and libibverbs' status."""

    def close(self) -> None: ...


class GuardedPair:
    """A queue pair that any thread may close while another one posts or polls.

    The bindings would use freed memory after a close, and crash the process.
    """

    def __init__(self, pair: QueuePair) -> None:
        self.info = pair.info
        self._pair = pair
        self._lock = threading.Lock()
        self._is_closed = False

    def connect(self, remote: QueuePairInfo) -> None:
        with self._lock:
            self._check()
            self._pair.connect(remote)

    def post(self, work: WorkRequest) -> None:
        with self._lock:
            self._check()
            self._pair.post(work)

    def poll(self, most: int) -> Sequence[tuple[int, int]]:
        with self._lock:
            self._check()
            return self._pair.poll(most)

    def _check(self) -> None:
        if self._is_closed:
            raise VerbsFailed("the queue pair is closed")

    def close(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._pair.close()


class VerbsDevice(Protocol):
    """An open device. Methods raise ``VerbsFailed`` if the device refuses a call."""

    name: str

    def register(self, address: int, length: int) -> MemoryKeys:
        """Register memory of this process, also of a GPU if the kernel supports that (peer
        memory)."""

    def register_dma_buf(self, fd: int, offset: int, address: int, length: int) -> MemoryKeys:
        """Register GPU memory by its exported descriptor.

        Work requests use its ``address`` in this process.
        """

    def queue_pair(self, most_work: int) -> QueuePair: ...

    def close(self) -> None:
        """Close the device, whose registrations and queue pairs must have been closed before."""


class VerbsLibrary(Protocol):
    """A binding of libibverbs."""

    name: str

    def list_devices(self) -> list[str]:
        """Return the names of the devices; an empty list if the kernel has no RDMA."""

    def open(self, name: str) -> VerbsDevice: ...


def works_of(
    kind: str, there: Iterator[Run], local: int, lkey: int, rkey: int
) -> Iterator[WorkRequest]:
    number = 0
    for remote, length in there:
        while length:
            size = min(length, _PIECE_BYTES)
            yield WorkRequest(
                number=number,
                kind=kind,
                local=local,
                lkey=lkey,
                remote=remote,
                rkey=rkey,
                length=size,
            )
            number += 1
            local, remote, length = local + size, remote + size, length - size
