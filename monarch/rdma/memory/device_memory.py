"""Copies of GPU memory, from device to device, or to and from memory of this host.

Copies to host memory that is not pinned go in chunks, through pinned memory: several threads each
take a chunk, so that the device copies one while others are on their way.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from monarch.rdma.memory.gpu import GpuMark, GpuStream, gpu
from monarch.rdma.memory.layout import Layout, Run, RunReader, StoragePlace, at, paired
from monarch.rdma.memory.memory import LocalMemory, copy_runs
from monarch.rdma.memory.workers import Workers

if TYPE_CHECKING:
    from monarch.rdma.memory.registry import Registration

_MIB = 2**20
_MOST_CHUNK_BYTES = 16 * _MIB
_LEAST_CHUNK_BYTES = 1 * _MIB
_NUM_CHUNKS = 16
AT_ONCE = 8


class DevicePart:
    """Bytes on GPUs, in the order of ``places``, whose addresses are valid in this process.

    A copy waits for the marks of ``after``.
    """

    def __init__(self, places: Iterable[StoragePlace], after: Sequence[GpuMark] = ()) -> None:
        self.places = list(places)
        self.after = after
        self.nbytes = sum(place.layout.nbytes for place in self.places)

    def cut(self, start: int, stop: int) -> DevicePart:
        """Return the bytes ``start`` to ``stop`` of the part."""
        places: list[StoragePlace] = []
        begin = 0
        for place in self.places:
            size = place.layout.nbytes
            places += place.cut(max(start - begin, 0), min(stop - begin, size))
            begin += size
        return DevicePart(places, self.after)


def part_of(memory: LocalMemory, num_bytes: int | None = None) -> DevicePart:
    """Describe GPU memory of this process, as it is when the work its program has queued is
    done."""
    whole = StoragePlace(memory.keep, memory.address, memory.layout)
    stop = memory.nbytes if num_bytes is None else num_bytes
    return DevicePart(whole.cut(0, stop), memory.ready)


def registered_part(found: Registration, held: object, ranges: Iterable[Run]) -> DevicePart:
    """Describe byte ranges of a registration of this process on a GPU, in the order of its
    elements.

    It waits for all queued work of the device, since it cannot know which thread queued it.
    """
    gpu().finish(gpu().device_of(held))
    return DevicePart(places_in(StoragePlace(held, found.address, found.layout), ranges))


def places_in(whole: StoragePlace, ranges: Iterable[Run]) -> Iterator[StoragePlace]:
    """Yield the places of byte ranges of ``whole``, counted in the order of the elements."""
    for start, size in ranges:
        yield from whole.cut(start, start + size)


def copy_across(source: DevicePart, target: DevicePart) -> None:
    """Copy from device to device, and wait for it.

    Between two devices torch asks for peer access; without it the driver copies through the host.
    """
    streams: dict[int, GpuStream] = {}
    for given, wanted in paired(source.places, target.places):
        stream = _stream_for(streams, wanted, (*source.after, *target.after))
        stream.copy(given, wanted)
    for stream in streams.values():
        stream.mark().wait()


def _stream_for(
    streams: dict[int, GpuStream], place: StoragePlace, after: Iterable[GpuMark]
) -> GpuStream:
    device = gpu().device_of(place.storage)
    stream = streams.get(device)
    if stream is None:
        stream = streams[device] = gpu().stream(device)
        for mark in after:
            stream.follow(mark)
    return stream


def copy_to_host(source: DevicePart, into: Sequence[Run], workers: Workers) -> None:
    """Copy from GPUs to memory of this host, and wait for it."""
    _by_host(source, into, workers, is_read=True)


def copy_from_host(given: Sequence[Run], target: DevicePart, workers: Workers) -> None:
    """Copy from memory of this host to GPUs, and wait for it."""
    _by_host(target, given, workers, is_read=False)


def _by_host(part: DevicePart, runs: Sequence[Run], workers: Workers, *, is_read: bool) -> None:
    pinned = _pinned_places(runs)
    if pinned is not None:
        _move(part, pinned, is_read=is_read)
        return
    host = RunReader(runs)

    def task(piece: DevicePart, there: list[Run]) -> None:
        storage, address = gpu().pinned(piece.nbytes)
        here = [(address, piece.nbytes)]
        if not is_read:
            copy_runs(there, here)
        _move(piece, [StoragePlace(storage, address, Layout(piece.nbytes))], is_read=is_read)
        if is_read:
            copy_runs(here, there)

    tasks = [
        functools.partial(task, part.cut(start, stop), host.take(stop - start))
        for start, stop in chunks_of(part.nbytes)
    ]
    workers.run_all(tasks, AT_ONCE)


def chunks_of(num_bytes: int) -> list[Run]:
    """Return the runs of the chunks into which a copy through pinned memory is divided."""
    size = min(max(num_bytes // _NUM_CHUNKS, _LEAST_CHUNK_BYTES), _MOST_CHUNK_BYTES)
    return [(start, min(start + size, num_bytes)) for start in range(0, num_bytes, size)]


def _pinned_places(runs: Sequence[Run]) -> list[StoragePlace] | None:
    """Return runs of this host's memory as places; ``None`` unless all of them are pinned."""
    places = []
    for address, size in runs:
        storage = gpu().pinned_at(address, size)
        if storage is None:
            return None
        places.append(StoragePlace(storage, address, Layout(size)))
    return places


def _move(part: DevicePart, host: Sequence[StoragePlace], *, is_read: bool) -> None:
    """Copy between devices and pinned memory, and wait for it."""
    streams: dict[int, GpuStream] = {}
    for there, here in paired(part.places, host):
        source, target = (there, here) if is_read else (here, there)
        _stream_for(streams, there, part.after).copy(source, target)
    for stream in streams.values():
        stream.mark().wait()


@contextlib.contextmanager
def on_host(
    found: Registration, held: object, start: int, stop: int, *, is_read: bool, is_written: bool
) -> Iterator[Sequence[Run]]:
    """Yield runs of host memory with the bytes ``start`` to ``stop`` of a registration.

    They are the memory itself or, for a GPU, a pinned copy, which is copied back if ``is_written``.
    """
    if found.device == "cpu":
        yield list(at(found.address, found.layout.runs(start, stop)))
        return
    part = registered_part(found, held, [(start, stop - start)])
    with staged(part, is_read=is_read, is_written=is_written) as there:
        yield there


@contextlib.contextmanager
def staged(part: DevicePart, *, is_read: bool, is_written: bool) -> Iterator[Sequence[Run]]:
    """Yield a copy of the part in pinned memory, as one run.

    ``is_read``: the part is copied there at the begin; ``is_written``: it is copied back at the
    end.
    """
    storage, address = gpu().pinned(part.nbytes)
    here = [StoragePlace(storage, address, Layout(part.nbytes))]
    if is_read:
        _move(part, here, is_read=True)
    yield [(address, part.nbytes)]
    if is_written:
        _move(part, here, is_read=False)
