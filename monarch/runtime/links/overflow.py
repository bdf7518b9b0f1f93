"""Messages that wait for a slow receiver on disk, so that they need no memory."""

from __future__ import annotations

import os
import struct
import tempfile
from collections import deque
from collections.abc import Sequence

from monarch.config import settings
from monarch.errors import MonarchError
from monarch.net.transport import Bytes, Frames

_TAIL_BYTES = 256 * 1024
_SEGMENT_BYTES = 64 * 2**20
_TOTAL = struct.Struct("<Q")
_COUNT = struct.Struct("<I")


class Overflow:
    """A queue of messages, first in, first out, of any length. Guarded by its owner's lock.

    The newest messages are in memory, up to a quarter of a megabyte; older ones are in nameless
    files, which vanish when the process ends in any way.
    """

    def __init__(
        self, *, max_tail_bytes: int = _TAIL_BYTES, segment_bytes: int = _SEGMENT_BYTES
    ) -> None:
        self._max_tail_bytes = max_tail_bytes
        self._segment_bytes = segment_bytes
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._segments: deque[_Segment] = deque()
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def push(self, frames: Frames) -> None:
        """Add a message. Raises ``MonarchError`` when the disk is full; then it is not added."""
        data = _join(frames)
        self._tail.append(data)
        self._tail_bytes += len(data)
        if self._tail_bytes > self._max_tail_bytes:
            try:
                self._write_tail()
            except OSError as error:
                self._tail.pop()
                self._tail_bytes -= len(data)
                raise MonarchError(
                    f"no room in {spill_directory()} for messages that wait for a slow receiver: "
                    f"{error.strerror}. Make room there, or name another directory in "
                    "MONARCH_SPILL_DIR, or send more slowly"
                ) from None
        self._num += 1

    def _write_tail(self) -> None:
        if not self._segments or self._segments[-1].num_written >= self._segment_bytes:
            self._segments.append(_Segment())
        self._segments[-1].append(b"".join(self._tail))
        self._tail.clear()
        self._tail_bytes = 0

    def pop(self) -> list[Bytes]:
        """Remove and return the oldest message."""
        self._num -= 1
        while self._segments:
            data = self._segments[0].next()
            if data is not None:
                return _split(data)
            self._segments.popleft().close()
        data = self._tail.popleft()
        self._tail_bytes -= len(data)
        return _split(data[_TOTAL.size :])

    def close(self) -> None:
        """Drop all messages."""
        for segment in self._segments:
            segment.close()
        self._segments.clear()
        self._tail.clear()
        self._num = self._tail_bytes = 0


class _Segment:
    """One file: written at its end, read from its beginning."""

    def __init__(self) -> None:
        # Closed when it has been read, or with the overflow.
        self._file = tempfile.TemporaryFile(dir=spill_directory(), buffering=0)  # noqa: SIM115
        self._num_read = 0
        self.num_written = 0

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        end = self.num_written
        while view:
            # At an explicit offset, so that the next write replaces what a full disk cut short.
            count = os.pwrite(self._file.fileno(), view, end)
            end += count
            view = view[count:]
        self.num_written = end

    def next(self) -> bytes | None:
        if self._num_read == self.num_written:
            return None
        (size,) = _TOTAL.unpack(self._read(_TOTAL.size))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = os.pread(self._file.fileno(), size - len(data), self._num_read)
            assert part, "an overflow file is shorter than what was written to it"
            self._num_read += len(part)
            data = data + part if data else part
        return data

    def close(self) -> None:
        self._file.close()


def spill_directory() -> str:
    """Return the folder for overflow files: by default on a disk, not in memory."""
    chosen = settings().spill_dir
    if chosen:
        return chosen
    return "/var/tmp" if os.access("/var/tmp", os.W_OK | os.X_OK) else tempfile.gettempdir()


def _join(frames: Sequence[Bytes]) -> bytes:
    sizes = struct.pack(f"<{len(frames)}Q", *(memoryview(frame).nbytes for frame in frames))
    body = b"".join((_COUNT.pack(len(frames)), sizes, *frames))
    return _TOTAL.pack(len(body)) + body


def _split(data: bytes) -> list[Bytes]:
    (count,) = _COUNT.unpack_from(data)
    sizes = struct.unpack_from(f"<{count}Q", data, _COUNT.size)
    start = _COUNT.size + 8 * count
    frames: list[Bytes] = []
    for size in sizes:
        frames.append(data[start : start + size])
        start += size
    return frames
