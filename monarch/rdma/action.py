"""`RDMAAction`: several transfers that are submitted as one."""

from __future__ import annotations

import functools
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any

from monarch.actor.future import Future
from monarch.rdma.buffer import (
    DEFAULT_TIMEOUT,
    RDMABuffer,
    deadline_of,
    destination,
    exchange,
    local_memory,
    read,
    source,
    write,
)
from monarch.rdma.memory.gpu import GpuMark, gpu
from monarch.rdma.memory.memory import LocalMemory, copy_runs, memory_of
from monarch.rdma.memory.region import Part
from monarch.rdma.transfers import start
from monarch.rdma.ways.backend import WordChange
from monarch.rdma.ways.choice import Ways, ways

_Step = Callable[[Ways, float, tuple[GpuMark, ...]], None]
_AT_ONCE = 4
_WORD = struct.Struct("=q")


class RDMAAction:
    """Reads and writes that are submitted together, and run in any order.

    ``submit`` may be called again to repeat them. Local memory that a step reads into must not be
    part of another step of the same action.
    """

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._claims = _Claims()
        #: Keeps the local memory of the steps for as long as the action exists.
        self._held: list[Any] = []
        #: The GPUs of that memory: a submitted action waits for the work queued on them.
        self._devices: set[int] = set()

    def read_remote(self, dst: Any, src: RDMABuffer) -> RDMAAction:
        """Add a read of the buffer ``src`` into ``dst``; return this action.

        Raises ``ValueError`` if ``dst`` is smaller than ``src``, or overlaps memory that another
        step uses.
        """
        memory = destination(dst, src)
        self._claim(memory, src.size(), is_written=True)
        part = src.part
        self._steps.append(
            lambda way, deadline, ready: read(
                way, part, memory._replace(ready=ready), deadline, consistent=False
            )
        )
        return self

    def write_remote(self, dst: RDMABuffer, src: Any) -> RDMAAction:
        """Add a write of ``src`` to the beginning of the buffer ``dst``; return this action.

        Raises ``ValueError`` if ``src`` is larger than ``dst``, or overlaps memory that another
        step reads into.
        """
        memory = source(src, dst)
        dst.check_writable()
        self._claim(memory, memory.nbytes, is_written=False)
        part = Part(dst.part.region, dst.part.start, dst.part.start + memory.nbytes)
        self._steps.append(
            lambda way, deadline, ready: write(way, part, memory._replace(ready=ready), deadline)
        )
        return self

    def read_into(self, src: RDMABuffer, dst: Any) -> RDMAAction:
        """Call ``read_remote(dst, src)``: a name for older programs, with the buffer first."""
        return self.read_remote(dst, src)

    def write_from(self, src: RDMABuffer, dst: Any) -> RDMAAction:
        """Call ``write_remote(src, dst)``: a name for older programs.

        In spite of its name, ``src`` is the buffer that is written, and ``dst`` the local memory.
        """
        return self.write_remote(src, dst)

    def fetch_add(self, src: RDMABuffer, dst: Any, add: int, *, offset: int = 0) -> RDMAAction:
        """Add a step that adds ``add`` to the 64-bit word at byte ``offset`` of ``src``.

        The word's old value is written to ``dst``, 8 bytes of local memory, unless ``dst`` is
        ``None``.
        """
        return self._exchange(src, dst, offset, WordChange(add % 2**64))

    def compare_and_swap(
        self, src: RDMABuffer, dst: Any, compare: int, swap: int, *, offset: int = 0
    ) -> RDMAAction:
        """Add a step that compares the 64-bit word at byte ``offset`` of ``src``, and swaps it.

        The word is set to ``swap`` if it is ``compare``. Its old value is written to ``dst``, 8
        bytes of local memory, unless ``dst`` is ``None``.
        """
        return self._exchange(src, dst, offset, WordChange(swap % 2**64, compare % 2**64))

    def _exchange(self, src: RDMABuffer, dst: Any, offset: int, change: WordChange) -> RDMAAction:
        region, word_offset = src.part.region, src.check_word(offset)
        memory = None
        if dst is not None:
            memory = local_memory(dst, "read into", None, is_written=True)
            if memory.nbytes != _WORD.size or memory.device != "cpu":
                raise ValueError(
                    f"a word is read into {_WORD.size} bytes of this host's memory, not into "
                    f"{memory.nbytes} of {memory.device}: give a bytearray({_WORD.size}), or None"
                )
            self._claim(memory, _WORD.size, is_written=True)

        def step(way: Ways, deadline: float, ready: tuple[GpuMark, ...]) -> None:
            old = exchange(way, region, word_offset, change, deadline)
            if memory is not None:
                # A name for it: the memory must stay until the copy is done.
                source = memory_of(_WORD.pack(old))
                copy_runs(source.runs(), memory.runs())

        self._steps.append(step)
        return self

    def _claim(self, memory: LocalMemory, num_bytes: int, *, is_written: bool) -> None:
        low, size = memory.layout.span()
        if memory.layout.is_contiguous:
            size = num_bytes
        if not size:
            return
        begin = memory.address + low
        if not self._claims.add(begin, begin + size, is_written=is_written):
            raise ValueError(
                "it overlaps local memory that another step of this action uses: give each step "
                "memory of its own, or use two actions, one after the other"
            )
        self._held.append(memory.keep)
        if memory.device != "cpu":
            self._devices.add(gpu().device_of(memory.keep))

    def submit(self, timeout: float = DEFAULT_TIMEOUT) -> Future[None]:
        """Run all steps; the result is a future.

        The future raises the first error of a step; other steps may have run nevertheless.
        """
        steps, deadline = list(self._steps), deadline_of(timeout)
        ready = tuple(gpu().mark(device) for device in self._devices)

        def work(way: Ways) -> None:
            tasks = [functools.partial(step, way, deadline, ready) for step in steps]
            if tasks:
                way.workers.run_all(tasks, _AT_ONCE)

        return start(ways(), work)


class _Claims:
    """The local memory that the steps of an action use.

    A step may only write memory that no other step uses. Several steps may read the same memory.
    """

    def __init__(self) -> None:
        self._written = _Intervals()
        self._read = _Intervals()

    def add(self, start: int, stop: int, *, is_written: bool) -> bool:
        """Claim a range; return False, and claim nothing, if it conflicts with an earlier claim."""
        if self._written.meets(start, stop) or (is_written and self._read.meets(start, stop)):
            return False
        (self._written if is_written else self._read).add(start, stop)
        return True


class _Intervals:
    """Sorted ranges of addresses that do not overlap.

    A new range is merged with the ranges that it overlaps.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def _met(self, start: int, stop: int) -> tuple[int, int]:
        return bisect_right(self._stops, start), bisect_left(self._starts, stop)

    def meets(self, start: int, stop: int) -> bool:
        first, last = self._met(start, stop)
        return first < last

    def add(self, start: int, stop: int) -> None:
        first, last = self._met(start, stop)
        if first < last:
            start, stop = min(start, self._starts[first]), max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]
