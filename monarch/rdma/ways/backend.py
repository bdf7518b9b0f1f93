"""The interface of a way to the memory of another process. All ways pass one contract suite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from monarch.rdma.memory.device_memory import DevicePart
from monarch.rdma.memory.layout import Run
from monarch.rdma.memory.region import Part, Ranges, RemoteRegion
from monarch.rdma.memory.table import TableEntry


class BackendUnavailable(Exception):
    """This backend cannot reach the owner; the next one is tried."""


class Backend(Protocol):
    """Moves bytes, on the calling thread. ``deadline`` is a time of ``time.monotonic()``.

    Runs are addresses of this process, with as many bytes as the part. Methods raise
    ``RemoteMemoryError`` if the memory is gone, ``TimeoutError`` at the deadline, and
    ``BackendUnavailable``, before any byte has moved, if this backend cannot reach the owner.
    """

    name: str

    def read(
        self, part: Part | Ranges, into: Sequence[Run], deadline: float
    ) -> tuple[TableEntry, TableEntry]:
        """Copy the part to ``into``; return its table entry from before and from after the copy."""
        ...

    def write(self, part: Part, source: Sequence[Run], deadline: float) -> None:
        """Copy ``source`` to the part."""
        ...

    def fetch_add(self, region: RemoteRegion, offset: int, amount: int, deadline: float) -> int:
        """Add to the 64-bit word at ``offset``, modulo 2^64; return its old value."""
        ...

    def compare_and_swap(
        self, region: RemoteRegion, offset: int, expected: int, new: int, deadline: float
    ) -> int:
        """Set the 64-bit word at ``offset`` if it is ``expected``; return its old value."""
        ...


@runtime_checkable
class DeviceBackend(Backend, Protocol):
    """A backend that reaches GPU memory, also directly from other GPUs, without the host's
    memory."""

    def read_across(
        self, part: Part | Ranges, target: DevicePart, deadline: float
    ) -> tuple[TableEntry, TableEntry]:
        """Copy the part to memory of a GPU of this process; return its entry from before and
        after."""
        ...

    def write_across(self, part: Part, source: DevicePart, deadline: float) -> None:
        """Copy memory of a GPU of this process to the part."""
        ...
