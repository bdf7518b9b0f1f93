"""Memory of GPUs, copied from device to device, or to and from memory of this host.

To memory of the host that is not pinned it goes in chunks, by pinned memory: several threads each
take one, so that the device copies one chunk while others are on their way.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from monarch.rdma.gpu import GpuMark, Place, gpu
from monarch.rdma.layout import Block, Layout, Run, RunReader, at, blocks, paired
from monarch.rdma.memory import LocalMemory, copy_runs
from monarch.rdma.workers import Workers

if TYPE_CHECKING:
    from monarch.rdma.registry import Registration

_MIB = 2**20
_MOST_CHUNK_BYTES = 16 * _MIB
_LEAST_CHUNK_BYTES = 1 * _MIB
_NUM_CHUNKS = 16
AT_ONCE = 8


class DevicePart:
    """Some bytes of a storage of a GPU: ``blocks`` have addresses of this process.

    ``after`` are marks that a copy has to come after.
    """

    def __init__(
        self, storage: Any, found: Iterable[Block], after: Sequence[GpuMark] = ()
    ) -> None:
        self.storage = storage
        self.blocks = list(found)
        self.after = after
        self.nbytes = sum(layout.nbytes for _, layout in self.blocks)

    def cut(self, start: int, stop: int) -> DevicePart:
        """The bytes ``start`` to ``stop`` of it."""
        parts, begin = [], 0
        for address, layout in self.blocks:
            low, high = max(start - begin, 0), min(stop - begin, layout.nbytes)
            parts += [(address + offset, block) for offset, block in blocks(layout, low, high)]
            begin += layout.nbytes
        return DevicePart(self.storage, parts, self.after)


def part_of(memory: LocalMemory, num_bytes: int | None = None) -> DevicePart:
    """Memory of a GPU that this process has: as it is when its program's work until now is done."""
    stop = memory.nbytes if num_bytes is None else num_bytes
    found = region_blocks(memory.address, memory.layout, [(0, stop)])
    return DevicePart(memory.keep, found, memory.ready)


def registered_part(found: Registration, held: object, ranges: Iterable[Run]) -> DevicePart:
    """Bytes of a registration of this process that lies on a GPU, counted as its elements are.

    A copy comes after all that was queued here: which thread did that, nobody knows.
    """
    gpu().finish(gpu().device_of(held))
    return DevicePart(held, region_blocks(found.address, found.layout, ranges))


def region_blocks(address: int, layout: Layout, ranges: Iterable[Run]) -> list[Block]:
    """The blocks of ranges of bytes, counted in the order of the elements."""
    return [
        (address + offset, block)
        for start, size in ranges
        for offset, block in blocks(layout, start, start + size)
    ]


def copy_across(source: DevicePart, target: DevicePart) -> None:
    """Copy from device to device, and wait for it."""
    pairs = paired(source.blocks, target.blocks)
    # Between two devices torch asks for peer access; without it the driver goes by the host.
    stream = gpu().stream(gpu().device_of(target.storage))
    for mark in (*source.after, *target.after):
        stream.follow(mark)
    for (from_, given), (to, wanted) in pairs:
        stream.copy(Place(source.storage, from_, given), Place(target.storage, to, wanted))
    stream.mark().wait()


def copy_to_host(source: DevicePart, into: Sequence[Run], workers: Workers) -> None:
    """Copy to memory of this host, and wait for it."""
    _by_host(source, into, workers, is_read=True)


def copy_from_host(given: Sequence[Run], target: DevicePart, workers: Workers) -> None:
    """The other way."""
    _by_host(target, given, workers, is_read=False)


def _by_host(part: DevicePart, runs: Sequence[Run], workers: Workers, *, is_read: bool) -> None:
    if len(runs) == 1:
        address = runs[0][0]
        storage = gpu().pinned_at(address, part.nbytes)
        if storage is not None:
            _move(part, storage, address, is_read=is_read)
            return
    host = RunReader(runs)

    def task(piece: DevicePart, there: list[Run]) -> None:
        storage, address = gpu().pinned(piece.nbytes)
        here = [(address, piece.nbytes)]
        if not is_read:
            copy_runs(there, here)
        _move(piece, storage, address, is_read=is_read)
        if is_read:
            copy_runs(here, there)

    tasks = [
        functools.partial(task, part.cut(start, stop), host.take(stop - start))
        for start, stop in chunks_of(part.nbytes)
    ]
    workers.run_all(tasks, AT_ONCE)


def chunks_of(num_bytes: int) -> list[Run]:
    """Where the chunks begin and end that go by pinned memory beside each other."""
    size = min(max(num_bytes // _NUM_CHUNKS, _LEAST_CHUNK_BYTES), _MOST_CHUNK_BYTES)
    return [(start, min(start + size, num_bytes)) for start in range(0, num_bytes, size)]


def _move(part: DevicePart, storage: Any, address: int, *, is_read: bool) -> None:
    """Copy between a device and pinned memory, and wait for it."""
    stream = gpu().stream(gpu().device_of(part.storage))
    for mark in part.after:
        stream.follow(mark)
    for far, layout in part.blocks:
        there, here = Place(part.storage, far, layout), Place(storage, address, Layout(layout.nbytes))
        source, target = (there, here) if is_read else (here, there)
        stream.copy(source, target)
        address += layout.nbytes
    stream.mark().wait()


@contextlib.contextmanager
def on_host(
    found: Registration, held: object, start: int, stop: int, *, is_read: bool, is_written: bool
) -> Iterator[Sequence[Run]]:
    """Runs of this host's memory with the bytes ``start`` to ``stop`` of a registration.

    They are the memory itself, or a pinned copy of it, which is copied back if ``is_written``.
    """
    if found.device == "cpu":
        yield list(at(found.address, found.layout.runs(start, stop)))
        return
    part = registered_part(found, held, [(start, stop - start)])
    with staged(part, is_read=is_read, is_written=is_written) as there:
        yield there


@contextlib.contextmanager
def staged(part: DevicePart, *, is_read: bool, is_written: bool) -> Iterator[Sequence[Run]]:
    """A copy of it in pinned memory, as one run.

    ``is_read``: it begins with what the device holds; ``is_written``: that gets what it ends with.
    """
    storage, address = gpu().pinned(part.nbytes)
    if is_read:
        _move(part, storage, address, is_read=True)
    yield [(address, part.nbytes)]
    if is_written:
        _move(part, storage, address, is_read=False)
