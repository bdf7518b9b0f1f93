"""The description of memory in another process: its owner, address and layout."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from monarch.errors import RemoteMemoryError
from monarch.rdma.memory.layout import Layout, Run, at
from monarch.rdma.memory.table import DROPPED, FREED, LIVE, TableEntry, TablePlace
from monarch.runtime.held import refers
from monarch.wire.address import ProcAddress


@dataclass(frozen=True)
class RemoteRegion:
    """Registered memory of a process. ``key`` is unique to the registration."""

    owner: ProcAddress
    owner_name: str
    table: TablePlace
    slot: int
    key: int
    address: int
    layout: Layout
    is_readonly: bool = False
    device: str = "cpu"

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    @property
    def is_on_cpu(self) -> bool:
        return self.device == "cpu"

    def runs(self, start: int = 0, stop: int | None = None) -> Iterator[Run]:
        """Yield the addresses in the owner's process, and lengths, of the bytes ``start`` to
        ``stop``."""
        return at(self.address, self.layout.runs(start, stop))

    def check(self, entry: TableEntry) -> None:
        """Raise ``RemoteMemoryError`` unless the table entry is of this registration and live."""
        if entry.key != self.key or entry.state != LIVE:
            raise self.error(why_not(entry, self.key))

    def error(self, why: str) -> RemoteMemoryError:
        return RemoteMemoryError(str(self), self.owner_name, why)

    def orphaned(self, how: str) -> RemoteMemoryError:
        """Return the error for memory whose process has ended.

        ``how`` says how it has ended, and begins the error's text.
        """
        return self.error(f"{how}. Spawn its owner again, and have it make a new buffer")

    def __str__(self) -> str:
        return f"RDMABuffer {self.key:016x} of {self.nbytes} bytes"


def why_not(entry: TableEntry, key: int) -> str:
    """Return why a registration has ended, from the present entry of its slot in the table."""
    if entry.key != key:
        return f"it was dropped or freed, and its place has been given to another. {_MAKE_ANEW}"
    return _WHY.get(entry.state, f"it is about to be dropped. {_MAKE_ANEW}")


_MAKE_ANEW = "Have its owner make another"
FREED_MEMORY = (
    "the memory that it stood for was freed, or is about to be. Have its owner refer to the memory "
    "(the tensor, the bytearray) for as long as others use a buffer of it"
)
_WHY = {DROPPED: f"it was dropped. {_MAKE_ANEW}", FREED: FREED_MEMORY}

refers(RemoteRegion, lambda region: (region.owner.uid,))


@dataclass(frozen=True)
class Ranges:
    """Several byte ranges of a contiguous region, in the order in which they are read."""

    region: RemoteRegion
    ranges: tuple[Run, ...]

    @property
    def nbytes(self) -> int:
        return sum(length for _, length in self.ranges)

    def runs(self) -> Iterator[Run]:
        return at(self.region.address, self.ranges)


@dataclass(frozen=True)
class Part:
    """The bytes ``start`` to ``stop`` of a region."""

    region: RemoteRegion
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        return self.stop - self.start

    @property
    def ranges(self) -> tuple[Run, ...]:
        return ((self.start, self.nbytes),)

    def runs(self) -> Iterator[Run]:
        return self.region.runs(self.start, self.stop)

    def cut(self, most_bytes: int) -> list[Part]:
        """Cut the part into pieces of about equal size, each of at most ``most_bytes``."""
        num = max(1, math.ceil(self.nbytes / most_bytes))
        step = -(-self.nbytes // num)
        step += -step % 64
        return [
            Part(self.region, start, min(start + step, self.stop))
            for start in range(self.start, self.stop, max(step, 1))
        ]
