"""Buffers that other processes read and write without their owner's help."""

from __future__ import annotations

import asyncio
import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from monarch.actor.context import context
from monarch.actor.future import Future, make_future
from monarch.config import upstream_value
from monarch.rdma.memory import table as tables
from monarch.rdma.memory.device_memory import part_of
from monarch.rdma.memory.memory import LocalMemory, memory_of
from monarch.rdma.memory.region import Part, RemoteRegion
from monarch.rdma.memory.registry import is_registry_made, registry
from monarch.rdma.transfers import start
from monarch.rdma.ways.availability import RDMAReadTransferWarning, RDMAWriteTransferWarning
from monarch.rdma.ways.backend import WordChange
from monarch.rdma.ways.choice import Ways, ways
from monarch.rdma.ways.own_process import is_own
from monarch.rdma.ways.process_vm import is_supported
from monarch.runtime import process
from monarch.runtime.promise import Promise
from monarch.wire.message import AskMemory

T = TypeVar("T")

DEFAULT_TIMEOUT = 60

_QUICK_BYTES = 256 * 1024
"""A copy of at most so many bytes takes less time than waking another thread."""

_PLAIN_QUICK_BYTES = 16 * 2**20
"""The same on a thread without an event loop, which delays nobody else: another thread costs a
millisecond on a busy machine."""

_DEVICE_TIMES = 32
"""GPU memory moves so many times as fast as the host's."""

_MOST_SECONDS = 2**31


class RDMABuffer:
    """The bytes of a tensor or a ``memoryview``, which any process with this object may read and
    write.

    The owner makes it, in an actor or the client; pickled, it is a reference. Nothing is copied:
    later reads see later writes of the owner, and a read during a write may see a part of it. The
    registration ends with ``drop()``, or when nothing in the owner's process refers to the memory
    any longer: then reads and writes raise ``RemoteMemoryError``.

    Tensors may have any shape and strides; their bytes are counted in the order of the elements.
    ``buffer[a:b]`` is a view of bytes ``a`` to ``b``.
    """

    def __init__(self, data: Any) -> None:
        memory = memory_of(data)
        if memory.nbytes == 0:
            raise ValueError(
                "Cannot create RDMABuffer with size 0. Leave it out, or give memory of a byte"
            )
        if not is_supported() and not upstream_value("rdma_allow_tcp_fallback"):
            raise RuntimeError(
                "no way leads to memory of this process from others: there is no RDMA device, and "
                "TCP is not allowed. Call configure(rdma_allow_tcp_fallback=True)"
            )
        ways()
        owner = str(context().actor_instance.actor_id)
        region = registry().register(memory, process.current().node.address, owner)
        self._part = Part(region, 0, region.nbytes)
        #: Keeps the memory until ``drop()``; ``None`` in other processes, and in slices.
        self._kept: Any = data

    @property
    def part(self) -> Part:
        """Return the registered memory, and which bytes of it this buffer covers."""
        return self._part

    def size(self) -> int:
        """Return the size in bytes."""
        return self._part.nbytes

    def __len__(self) -> int:
        return self._part.nbytes

    @property
    def owner(self) -> str:
        """Return the actor that made the buffer, as ``str()`` of its address."""
        return self._part.region.owner_name

    @property
    def backend(self) -> str:
        """Return how this process would reach the memory.

        It is "local", "process_vm", "cuda_ipc", "ibverbs", "tcp", or "none" if there is no way. The
        first read or write may find that it does not work, and take another way.
        """
        backends = ways().to(self._part.region)
        return backends[0].name if backends else "none"

    def __getitem__(self, index: slice) -> RDMABuffer:
        if not isinstance(index, slice) or index.step not in (None, 1):
            raise TypeError("a buffer is sliced by bytes, as in buffer[a:b]")
        start, stop, _ = index.indices(self.size())
        if start >= stop:
            raise ValueError(
                f"[{index.start}:{index.stop}] of {self.size()} bytes is empty: give a smaller "
                f"number before a larger one, within 0 and {self.size()}"
            )
        return _received(self._part.region, self._part.start + start, self._part.start + stop)

    def read_into(
        self, dst: Any, *, timeout: float = DEFAULT_TIMEOUT, consistent: bool = False
    ) -> Future[None]:
        """Copy the buffer into ``dst``, a tensor or a writable buffer of at least its size.

        ``consistent`` repeats the read until no write was in progress: neither a ``write_from``,
        nor the owner's within ``with buffer.changing():``. Raises ``ValueError`` if ``dst`` is
        smaller than the buffer. The future raises ``RemoteMemoryError`` if the memory is gone, and
        ``TimeoutError`` after ``timeout`` seconds.
        """
        memory = destination(dst, self).as_of_now()
        part, deadline = self._part, deadline_of(timeout)
        return self._start(lambda way: read(way, part, memory, deadline, consistent=consistent))

    def write_from(self, src: Any, *, timeout: float = DEFAULT_TIMEOUT) -> Future[None]:
        """Copy ``src`` to the beginning of the buffer.

        Raises ``ValueError`` if ``src`` is larger than the buffer. The future raises
        ``RemoteMemoryError`` if the memory is gone, and ``TimeoutError`` after ``timeout`` seconds.
        """
        memory = source(src, self).as_of_now()
        part, deadline = self._part, deadline_of(timeout)
        self.check_writable()
        target = Part(part.region, part.start, part.start + memory.nbytes)
        return self._start(lambda way: write(way, target, memory, deadline))

    def fetch_add(
        self, amount: int, offset: int = 0, *, timeout: float = DEFAULT_TIMEOUT
    ) -> Future[int]:
        """Add ``amount`` to the 64-bit word at byte ``offset``, atomically and modulo 2^64.

        The future has the old value, as a signed number. The step is atomic for all users of this
        method; the owner's own code takes part only if it calls this method too.
        """
        return self._exchange(offset, WordChange(amount % 2**64), timeout)

    def compare_and_swap(
        self, expected: int, new: int, offset: int = 0, *, timeout: float = DEFAULT_TIMEOUT
    ) -> Future[int]:
        """Set the 64-bit word at byte ``offset`` to ``new`` if it is ``expected``, atomically.

        The future has the old value, as a signed number: ``expected`` if the word was set.
        """
        return self._exchange(offset, WordChange(new % 2**64, expected % 2**64), timeout)

    def _exchange(self, offset: int, change: WordChange, timeout: float) -> Future[int]:
        word, deadline = self.check_word(offset), deadline_of(timeout)
        return self._start(lambda way: exchange(way, self._part.region, word, change, deadline))

    def check_word(self, offset: int) -> int:
        """Return the position, in the registration, of the 64-bit word at byte ``offset``.

        Raises ``ValueError`` if there is no such word, or if it is read-only.
        """
        self.check_writable()
        region, start = self._part.region, self._part.start + offset
        if not 0 <= offset <= self.size() - 8:
            raise ValueError(
                f"there is no 64-bit word at byte {offset} of {self.size()}: the last begins at "
                f"{self.size() - 8}"
            )
        runs = list(region.runs(start, start + 8))
        if len(runs) != 1 or runs[0][0] % 8:
            raise ValueError(
                f"byte {offset} is not where a 64-bit word can begin in memory: give an offset at "
                "which the address is a multiple of 8, of elements that lie side by side"
            )
        return start

    def check_writable(self) -> None:
        """Raise ``ValueError`` if the memory is read-only in its owner's process, or if several of
        its elements have one address."""
        region = self._part.region
        if region.is_readonly:
            raise ValueError(
                "the buffer's memory is read-only in its owner's process: have that register a "
                "bytearray, or a copy"
            )
        if region.layout.has_shared_places:
            raise ValueError("several elements of the buffer share one place in memory: clone it")

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Count the ``with`` block as a write by the owner: consistent readers wait for its end.

        Raises ``ValueError`` in another process.
        """
        region = self._part.region
        if not is_own(region):
            raise ValueError("only the owner changes memory in place: use write_from")
        registry().find(region)
        slot, deadline = region.slot, time.monotonic() + DEFAULT_TIMEOUT
        with tables.closing(registry().table.open()) as fd, tables.in_use(fd, slot, deadline):
            tables.begin(fd, slot, deadline)
            try:
                yield
            finally:
                # After an error in the owner's own code the change counts as ended.
                tables.end(fd, slot, deadline)

    def drop(self) -> Future[None]:
        """End the registration, from any process: later reads and writes fail. It may be called
        again."""
        region = self._part.region
        if self.size() != region.nbytes:
            raise ValueError("this is a part of a buffer: drop the whole of it")
        self._kept = None
        if is_own(region):
            registry().drop(region.slot, region.key)
            done: Promise[None] = Promise()
            done.set(None)
            return make_future(done, lambda value: value)
        node = process.current().node
        about = {"slot": region.slot, "key": region.key}
        answer = node.ask(region.owner, AskMemory("drop", about))

        def check(response: Any) -> None:
            if response.error and not response.is_down:
                raise region.error(response.error)

        return make_future(answer, check)

    def _start(self, work: Callable[[Ways], T]) -> Future[T]:
        way, region = ways(), self._part.region
        way.warn_of_tcp(region)
        limit = _QUICK_BYTES if _has_loop() else _PLAIN_QUICK_BYTES
        if not region.is_on_cpu:
            limit *= _DEVICE_TIMES
        return start(way, work, is_quick=self.size() <= limit and way.is_quick(region))

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self._part.region, self._part.start, self._part.stop)

    def __repr__(self) -> str:
        return f"<{self._part.region} of {self.owner}>"

    def __del__(self) -> None:
        # If only this object kept the memory, its registration ends now.
        part = self.__dict__.get("_part")
        if self.__dict__.pop("_kept", None) is not None and part and is_registry_made():
            region: RemoteRegion = part.region
            registry().look_at(region.slot, region.key)


def _received(region: RemoteRegion, start: int, stop: int) -> RDMABuffer:
    buffer = object.__new__(RDMABuffer)
    buffer._part = Part(region, start, stop)
    buffer._kept = None
    return buffer


def read(way: Ways, part: Part, memory: LocalMemory, deadline: float, *, consistent: bool) -> None:
    """Copy a part of a registration into memory of this process, on this thread."""
    if memory.device == "cpu":
        way.read(part, memory.runs(0, part.nbytes), deadline, consistent=consistent)
        return
    way.read_to_gpu(part, part_of(memory, part.nbytes), deadline, consistent=consistent)


def write(way: Ways, part: Part, memory: LocalMemory, deadline: float) -> None:
    """Copy memory of this process into a part of a registration, on this thread."""
    if not part.nbytes:
        return
    if memory.device == "cpu":
        way.write(part, memory.runs(), deadline)
        return
    way.write_from_gpu(part, part_of(memory), deadline)


def exchange(
    way: Ways, region: RemoteRegion, offset: int, change: WordChange, deadline: float
) -> int:
    """Change the 64-bit word at ``offset`` on this thread; return its old value, signed."""
    old = way.by_first(region, lambda backend: backend.exchange(region, offset, change, deadline))
    return old - 2**64 if old >= 2**63 else old


def destination(dst: Any, buffer: RDMABuffer) -> LocalMemory:
    """Return the memory of ``dst``. Raises ``ValueError`` if the buffer is larger than ``dst``."""
    memory = local_memory(dst, "read into", buffer, is_written=True)
    if memory.nbytes < buffer.size():
        raise ValueError(
            f"the destination has {memory.nbytes} bytes, and the buffer {buffer.size()}: give one "
            "of that size, or read a part, buffer[a:b]"
        )
    return memory


def source(src: Any, buffer: RDMABuffer) -> LocalMemory:
    """Return the memory of ``src``. Raises ``ValueError`` if it is larger than the buffer."""
    memory = local_memory(src, "written from", buffer, is_written=False)
    if memory.nbytes > buffer.size():
        raise ValueError(
            f"the source has {memory.nbytes} bytes, and the buffer {buffer.size()}: write a part "
            "of it, or have the owner make a larger one"
        )
    return memory


def local_memory(
    data: Any, doing: str, buffer: RDMABuffer | None, *, is_written: bool
) -> LocalMemory:
    memory = memory_of(data)
    if is_written and memory.is_readonly:
        raise ValueError(f"this is read-only: it cannot be {doing}. Give a bytearray, or a tensor")
    if is_written and memory.layout.has_shared_places:
        raise ValueError("several elements of it share one place in memory: clone it")
    if memory.device != "cpu" and buffer is not None and not ways().goes_across(buffer.part.region):
        kind = RDMAReadTransferWarning if is_written else RDMAWriteTransferWarning
        warnings.warn(
            f"memory of {memory.device} is {doing} by way of pinned memory of this host",
            kind,
            stacklevel=3,
        )
    return memory


def deadline_of(timeout: float) -> float:
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool):
        raise TypeError(f"a timeout is a number of seconds, not {type(timeout).__name__}")
    if not 0 <= timeout <= _MOST_SECONDS:
        raise OverflowError(f"a timeout of {timeout} s is out of range: give 0 to {_MOST_SECONDS}")
    return time.monotonic() + timeout


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
