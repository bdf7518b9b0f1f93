"""The form in which operations are sent: records in segments, segments in a batch.

A record is a few integers: the template's number, the reference of its first result, and its
inputs' references. The results are numbered on from the first, as the controller alone gives
references out. Number 0 begins a record of frees: how many, and which.

A segment is a sequence of records for one mesh and one stream. A batch is sent to all workers of a
client, and a worker skips the segments of meshes that it is not in. So all operations of one
controller are in one order, on all meshes.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

FREE = 0
EVERYBODY = 0
"""The number of the mesh of all workers."""
ALL_STREAMS = -1
"""The stream of recordings that use several streams: it waits for all others."""


LoggedOp = tuple[int, Any, Any, Sequence[Any]]
"""The facts of an operation that are kept until all ranks have passed it: the index of its record,
where the user called it, its template, and the storages that it writes to."""


class RecordSegment(msgspec.Struct, eq=False):
    """Records for one mesh and one stream."""

    mesh: int
    stream: int
    #: The records, one after the other.
    ints: list[int] = []
    #: The numbers that are sent with the records.
    scalars: list[Any] = []
    ops: list[LoggedOp] = []


class WireSegment(NamedTuple):
    """The records for one mesh and one stream, as a worker decodes them from a batch."""

    mesh: int
    stream: int
    records: Any
    scalars: list[Any]


def encode(definitions: Sequence[tuple[int, bytes]], segments: Sequence[RecordSegment]) -> bytes:
    """Return a batch as bytes.

    The integers of a segment take 4 bytes each, or 8 if one of them does not fit into 4.
    """
    wire = []
    for segment in segments:
        ints = segment.ints
        try:
            records = array("I", ints)
        except OverflowError:
            records = array("Q", ints)
        wire.append(
            (segment.mesh, segment.stream, records.typecode, records.tobytes(), segment.scalars)
        )
    return pickle.dumps((list(definitions), wire), 5)


def decode(data: Any) -> tuple[list[tuple[int, bytes]], list[WireSegment]]:
    definitions, wire = pickle.loads(data)
    segments = []
    for mesh, stream, typecode, octets, scalars in wire:
        records = array(typecode)
        records.frombytes(octets)
        segments.append(WireSegment(mesh, stream, records, scalars))
    return definitions, segments


class FlushPolicy(NamedTuple):
    """Decides when a batch is sent: when it has ``most_ops`` operations, when no operation has come
    for ``quiet_seconds``, or at the latest ``most_seconds`` after the first."""

    most_ops: int = 128
    quiet_seconds: float = 0.0005
    most_seconds: float = 0.005

    def seconds_left(self, first: float, now: float, num_new: int) -> float:
        """Return how many seconds a batch may still wait; its first operation came at ``first``.

        ``num_new`` is how many operations it has gained since the last call.
        """
        left = self.most_seconds - (now - first)
        return min(self.quiet_seconds, left) if num_new and left > 0 else 0.0


class Batch:
    """The operations that have been issued and not yet sent."""

    def __init__(self) -> None:
        self.segments: list[RecordSegment] = []
        self.num_ops = 0
        self._current: RecordSegment | None = None

    def segment(self, mesh: int, stream: int) -> RecordSegment:
        """Return the segment for the next record of this mesh and stream."""
        current = self._current
        if current is None or current.mesh != mesh or current.stream != stream:
            current = self._current = RecordSegment(mesh, stream)
            self.segments.append(current)
        return current

    def take(self) -> list[RecordSegment]:
        """Return the segments so far, and empty the batch."""
        taken, self.segments, self._current, self.num_ops = self.segments, [], None, 0
        return taken
