"""Several transfers as one."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from monarch.actor.future import Future
from monarch.rdma.buffer import (
    DEFAULT_TIMEOUT,
    RDMABuffer,
    deadline_of,
    local_memory,
    read,
    start,
    write,
)
from monarch.rdma.memory import LocalMemory
from monarch.rdma.region import Part
from monarch.rdma.ways import Ways, ways

_AT_ONCE = 4


class RDMAAction:
    """Reads and writes that are submitted together, and done in any order.

    ``submit`` may be called again: it does them again. Local memory that is read into must not be
    part of another step of the same action.
    """

    def __init__(self) -> None:
        self._steps: list[Callable[[Ways, float], None]] = []
        self._touched: list[tuple[int, int, bool]] = []
        # What is used is held until the action is done with.
        self._held: list[Any] = []

    def read_remote(self, dst: Any, buffer: RDMABuffer) -> RDMAAction:
        """Read ``buffer`` into ``dst``. Raises ``ValueError`` where that is smaller, or overlaps
        what another step uses.
        """
        memory = local_memory(dst, "read into", is_written=True)
        if memory.nbytes < buffer.size():
            raise ValueError(
                f"the destination has {memory.nbytes} bytes, and the buffer {buffer.size()}"
            )
        self._claim(memory, buffer.size(), is_written=True)
        part = buffer.part
        self._steps.append(
            lambda way, deadline: read(way, part, memory, deadline, consistent=False)
        )
        return self

    def write_remote(self, buffer: RDMABuffer, src: Any) -> RDMAAction:
        """Write ``src`` to the beginning of ``buffer``. Raises ``ValueError`` where it is larger,
        or overlaps what another step reads into.
        """
        memory = local_memory(src, "written from", is_written=False)
        if memory.nbytes > buffer.size():
            raise ValueError(
                f"the source has {memory.nbytes} bytes, and the buffer {buffer.size()}"
            )
        buffer.check_writable()
        self._claim(memory, memory.nbytes, is_written=False)
        part = Part(buffer.part.region, buffer.part.start, buffer.part.start + memory.nbytes)
        self._steps.append(lambda way, deadline: write(way, part, memory, deadline))
        return self

    def fetch_add(
        self, buffer: RDMABuffer, amount: int, offset: int = 0, *, into: Any = None
    ) -> RDMAAction:
        """Add to a word of ``buffer``; ``into`` is called with what it was."""
        return self._atomic(lambda left: buffer.fetch_add(amount, offset, timeout=left), into)

    def compare_and_swap(
        self, buffer: RDMABuffer, expected: int, new: int, offset: int = 0, *, into: Any = None
    ) -> RDMAAction:
        """Exchange a word of ``buffer``; ``into`` is called with what it was."""
        return self._atomic(
            lambda left: buffer.compare_and_swap(expected, new, offset, timeout=left), into
        )

    def _atomic(self, begin: Callable[[float], Future[int]], into: Any) -> RDMAAction:
        def step(way: Ways, deadline: float) -> None:
            old = begin(max(0.0, deadline - time.monotonic())).get()
            if into is not None:
                into(old)

        self._steps.append(step)
        return self

    def _claim(self, memory: LocalMemory, num_bytes: int, *, is_written: bool) -> None:
        low, size = memory.layout.span()
        if memory.layout.is_contiguous:
            size = num_bytes
        begin = memory.address + low
        for start_at, stop_at, written in self._touched:
            if (is_written or written) and begin < stop_at and start_at < begin + size:
                raise ValueError("it overlaps local memory that another step of this action uses")
        self._touched.append((begin, begin + size, is_written))
        self._held.append(memory.keep)

    def submit(self, timeout: float = DEFAULT_TIMEOUT) -> Future[None]:
        """Do all of them. The future raises the first error; others may have been done."""
        steps, deadline = list(self._steps), deadline_of(timeout)

        def work(way: Ways) -> None:
            tasks = [functools.partial(step, way, deadline) for step in steps]
            if tasks:
                way.workers.run_all(tasks, _AT_ONCE)

        return start(ways(), work)
