"""The interface of a way to the memory of another process. All ways pass one contract suite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from monarch.rdma.memory.layout import Run
from monarch.rdma.memory.region import Part, Ranges, RemoteRegion
from monarch.rdma.memory.table import TableEntry

Entries = tuple[TableEntry, TableEntry]
"""The table entry of a registration before a copy, and after it."""


class BackendUnavailable(Exception):
    """This backend cannot reach the owner of the memory; the next backend is tried."""


class WordChange(NamedTuple):
    """An atomic change of a 64-bit word: add ``operand``; or, if ``expected`` is a number, replace
    that number by ``operand``. Both are unsigned."""

    operand: int
    expected: int | None = None

    def of(self, old: int) -> int | None:
        """Return the new value of a word whose value is ``old``; ``None`` if it does not change."""
        if self.expected is None:
            return (old + self.operand) % 2**64
        return self.operand if old == self.expected else None


class Backend(Protocol):
    """Moves bytes, on the calling thread. ``deadline`` is a time of ``time.monotonic()``.

    Runs are addresses of this process, with as many bytes as the part. Methods raise
    ``RemoteMemoryError`` if the memory is gone, ``TimeoutError`` at the deadline, and
    ``BackendUnavailable``, before any byte has moved, if this backend cannot reach the owner.
    """

    name: str

    def read(self, part: Part | Ranges, into: Sequence[Run], deadline: float) -> Entries:
        """Copy the part to ``into``; return the table entries before and after the copy."""

    def write(self, part: Part, source: Sequence[Run], deadline: float) -> None:
        """Copy ``source`` to the part."""

    def exchange(
        self, region: RemoteRegion, offset: int, change: WordChange, deadline: float
    ) -> int:
        """Change the 64-bit word at ``offset``; return its old value."""
