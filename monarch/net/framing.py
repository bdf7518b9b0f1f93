"""Messages on a byte stream: the number of frames, the length of each, and then the frames.

ZeroMQ has framing of its own; a Unix stream socket keeps no boundaries.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from monarch.net.transport import Bytes, Frames

_COUNT = struct.Struct("<I")
_MAX_FRAMES = 1 << 20
_JOINED_BYTES = 32 * 1024
_LARGE_BYTES = 64 * 1024

_sizes_of_few = [struct.Struct(f"<I{count}Q") for count in range(16)]


class FramingError(ValueError):
    """Bytes from a stream are no message."""


def frame(frames: Frames) -> list[Bytes]:
    """Return the bytes to write for one message; a small message is a single buffer."""
    count = len(frames)
    sizes = [len(part) if type(part) is bytes else memoryview(part).nbytes for part in frames]
    head = _sizes(count).pack(count, *sizes)
    if sum(sizes) <= _JOINED_BYTES:
        return [b"".join((head, *frames))]
    return [head, *(memoryview(part).cast("B") for part in frames if len(part))]


def _sizes(count: int) -> struct.Struct:
    return _sizes_of_few[count] if count < 16 else struct.Struct(f"<I{count}Q")


class Unframer:
    """Cuts one stream into messages again.

    ``feed`` takes the bytes that were read. While a large message arrives, ``room`` is the memory
    for its next bytes. Reading straight into ``room``, and then calling ``filled``, saves a copy.
    """

    def __init__(self, receive: Callable[[Frames], None], max_bytes: int = -1) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._rest = b""
        self._sizes: tuple[int, ...] = ()
        self._body = bytearray()
        self._num_filled = 0

    @property
    def room(self) -> memoryview | None:
        """The unfilled rest of a large message; None if no large message is arriving."""
        if not self._body:
            return None
        return memoryview(self._body)[self._num_filled :]

    def filled(self, count: int) -> None:
        """Note that ``count`` bytes have been read into ``room``."""
        self._num_filled += count
        if self._num_filled == len(self._body):
            body, self._body = self._body, bytearray()
            self._receive(_cut(memoryview(body), 0, self._sizes, _keep))

    def feed(self, data: memoryview) -> None:
        """Take the next bytes. Raises ``FramingError`` for what cannot be a message."""
        if self._body:
            count = min(len(data), len(self._body) - self._num_filled)
            self._body[self._num_filled : self._num_filled + count] = data[:count]
            self.filled(count)
            data = data[count:]
        elif self._rest:
            data, self._rest = memoryview(self._rest + bytes(data)), b""
        start = 0
        while (end := self._next(data, start)) > start:
            start = end
        self._rest = bytes(data[start:])

    def _next(self, data: memoryview, start: int) -> int:
        """Hand over the message at ``start``. Returns where the next message begins, or ``start``
        if it is not whole yet."""
        if len(data) - start < _COUNT.size:
            return start
        (count,) = _COUNT.unpack_from(data, start)
        if count > _MAX_FRAMES:
            raise FramingError(f"a message of {count:,} frames")
        head = _sizes(count)
        body = start + head.size
        if len(data) < body:
            return start
        sizes: tuple[int, ...] = head.unpack_from(data, start)[1:]
        total = sum(sizes)
        if 0 <= self._max_bytes < total:
            raise FramingError(
                f"a message of {total:,} bytes, over the limit of {self._max_bytes:,}"
            )
        if len(data) >= body + total:
            self._receive(_cut(data, body, sizes, bytes))
            return body + total
        if total < _LARGE_BYTES:
            return start
        try:
            self._body = bytearray(total)
        except (MemoryError, OverflowError):
            raise FramingError(f"a message of {total:,} bytes, more than fits here") from None
        self._sizes = sizes
        self._num_filled = len(data) - body
        self._body[: self._num_filled] = data[body:]
        return len(data)


def _cut(
    data: memoryview, start: int, sizes: tuple[int, ...], keep: Callable[[memoryview], Bytes]
) -> list[Bytes]:
    frames: list[Bytes] = []
    for size in sizes:
        frames.append(keep(data[start : start + size]))
        start += size
    return frames


def _keep(view: memoryview) -> Bytes:
    return view
