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
# Threads take turns in Python: each chunk costs some half a millisecond, however small it is.
_LEAST_CHUNK_BYTES = 8 * _MIB
_NUM_CHUNKS = 16
AT_ONCE = 8


class DevicePart:
    """Bytes on GPUs, in the order of ``places``, whose addresses are valid in this process.

    A copy from or to them first waits for the marks ``after``.
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
    """Describe GPU memory of this process, as it will be after the work that is queued now."""
    whole = StoragePlace(memory.keep, memory.address, memory.layout)
    stop = memory.nbytes if num_bytes is None else num_bytes
    return DevicePart(whole.cut(0, stop), memory.ready)


def registered_part(
    registration: Registration, storage: object, ranges: Iterable[Run]
) -> DevicePart:
    """Describe byte ranges of this process's GPU memory, in the order of its elements.

    It waits for all queued work of the device, since it cannot know which thread queued it.
    """
    gpu().finish(gpu().device_of(storage))
    whole = StoragePlace(storage, registration.address, registration.layout)
    return DevicePart(places_in(whole, ranges))


def places_in(whole: StoragePlace, ranges: Iterable[Run]) -> Iterator[StoragePlace]:
    """Yield the places of byte ranges of ``whole``, counted in the order of the elements."""
    for start, size in ranges:
        yield from whole.cut(start, start + size)


def copy_across(source: DevicePart, target: DevicePart) -> None:
    """Copy from device to device, and wait for it.

    Between two devices torch asks for peer access; without it the driver copies through the host.
    """
    streams: dict[int, GpuStream] = {}
    for from_place, to_place in paired(source.places, target.places):
        stream = _stream_for(streams, to_place, (*source.after, *target.after))
        stream.copy(from_place, to_place)
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


def copy_from_host(source: Sequence[Run], target: DevicePart, workers: Workers) -> None:
    """Copy from memory of this host to GPUs, and wait for it."""
    _by_host(target, source, workers, is_read=False)


def _by_host(part: DevicePart, runs: Sequence[Run], workers: Workers, *, is_read: bool) -> None:
    pinned = _pinned_places(runs)
    if pinned is not None:
        _move(part, pinned, is_read=is_read)
        return
    host = RunReader(runs)

    def task(piece: DevicePart, piece_runs: list[Run]) -> None:
        with staged(piece, is_read=is_read, is_written=not is_read) as pinned_runs:
            if is_read:
                copy_runs(pinned_runs, piece_runs)
            else:
                copy_runs(piece_runs, pinned_runs)

    tasks = [
        functools.partial(task, part.cut(start, stop), host.take(stop - start))
        for start, stop in chunks_of(part.nbytes)
    ]
    workers.run_all(tasks, AT_ONCE)


def chunks_of(num_bytes: int) -> list[Run]:
    """Return where the chunks of a copy through pinned memory start and stop."""
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
    for device_place, host_place in paired(part.places, host):
        stream = _stream_for(streams, device_place, part.after)
        if is_read:
            stream.copy(device_place, host_place)
        else:
            stream.copy(host_place, device_place)
    for stream in streams.values():
        stream.mark().wait()


@contextlib.contextmanager
def on_host(
    registration: Registration,
    memory: object,
    start: int,
    stop: int,
    *,
    is_read: bool,
    is_written: bool,
) -> Iterator[Sequence[Run]]:
    """Yield runs of host memory with the bytes ``start`` to ``stop`` of a registration.

    They are the memory itself or, for a GPU, a pinned copy as ``staged`` makes it.
    """
    if registration.device == "cpu":
        yield list(at(registration.address, registration.layout.runs(start, stop)))
        return
    part = registered_part(registration, memory, [(start, stop - start)])
    with staged(part, is_read=is_read, is_written=is_written) as runs:
        yield runs


@contextlib.contextmanager
def staged(part: DevicePart, *, is_read: bool, is_written: bool) -> Iterator[Sequence[Run]]:
    """Yield pinned memory for the part, as one run.

    If ``is_read``, the part is copied there first; if ``is_written``, it is copied back at the end.
    """
    storage, address = gpu().pinned(part.nbytes)
    pinned = [StoragePlace(storage, address, Layout(part.nbytes))]
    if is_read:
        _move(part, pinned, is_read=True)
    yield [(address, part.nbytes)]
    if is_written:
        _move(part, pinned, is_read=False)
