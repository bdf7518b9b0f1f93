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

FREE = 0
EVERYBODY = 0
"""The number of the mesh of all workers."""
ALL_STREAMS = -1
"""The stream of what has to wait for all others: recordings that use several."""


LoggedOp = tuple[int, Any, Any, Sequence[Any]]
"""What is kept of an operation until all ranks have passed it: where its record stands, where the
user called it, its template, and the storages that it writes to."""


class RecordSegment:
    """Records for one mesh and one stream."""

    __slots__ = ("ints", "mesh", "ops", "scalars", "stream")

    def __init__(self, mesh: int, stream: int) -> None:
        self.mesh = mesh
        self.stream = stream
        self.ints: list[int] = []
        self.scalars: list[Any] = []
        self.ops: list[LoggedOp] = []


class WireSegment(NamedTuple):
    """A segment as a worker receives it."""

    mesh: int
    stream: int
    records: Any
    scalars: list[Any]


def encode(definitions: Sequence[tuple[int, bytes]], segments: Sequence[RecordSegment]) -> bytes:
    """Return a batch as bytes: 4 for each integer, or 8 if references have outgrown that."""
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


class FlushPolicy:
    """Decides when a batch is sent.

    It is sent at a number of operations, or when none has come for a while, or at the latest a
    fixed time after its first operation.
    """

    def __init__(
        self, most_ops: int = 128, quiet_seconds: float = 0.0005, most_seconds: float = 0.005
    ) -> None:
        self.most_ops = most_ops
        self.quiet_seconds = quiet_seconds
        self.most_seconds = most_seconds

    def seconds_left(self, first: float, now: float, num_new: int) -> float:
        """Return how long a batch may still wait that began at ``first``.

        ``num_new`` is how many operations it has gained since the last call.
        """
        left = self.most_seconds - (now - first)
        return min(self.quiet_seconds, left) if num_new and left > 0 else 0.0


class Batch:
    """The operations that have been issued and not yet sent."""

    __slots__ = ("_current", "num_ops", "segments")

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

    def free(self, refs: Sequence[int], mesh: int, stream: int) -> None:
        self.segment(mesh, stream).ints.extend((FREE, len(refs), *refs))

    def take(self) -> list[RecordSegment]:
        """Return the segments so far, and empty the batch."""
        taken, self.segments, self._current, self.num_ops = self.segments, [], None, 0
        return taken
