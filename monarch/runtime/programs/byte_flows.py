"""Bytes between a descriptor here and a stream to another process, with flow control."""

from __future__ import annotations

import os
from collections.abc import Callable

from monarch.net.io_loop import IoLoop

CHUNK_BYTES = 32 * 1024
WINDOW_BYTES = 8 * CHUNK_BYTES

Change = Callable[[bytes], bytes]


class ByteSource:
    """Reads a descriptor and sends the data; at most a window of it may be unacknowledged.

    All methods run on ``loop``. ``ended`` is called once, at the end of the input; the descriptor
    belongs to the caller. ``change`` changes the data before it is sent, and may keep some back.
    """

    def __init__(
        self,
        loop: IoLoop,
        fd: int,
        send: Callable[[bytes], object],
        ended: Callable[[], object],
        change: Change = bytes,
    ) -> None:
        self._loop, self._fd = loop, fd
        self._send, self._ended, self._change = send, ended, change
        self._room = WINDOW_BYTES
        self._is_reading = False
        self.is_over = False
        os.set_blocking(fd, False)

    def start(self) -> None:
        """Read as long as there is room in the window."""
        if not self._is_reading and not self.is_over and self._room > 0:
            self._is_reading = True
            self._loop.add_reader(self._fd, self._read)

    def taken(self, num_bytes: int) -> None:
        """Note that the receiver has taken so many bytes."""
        self._room = min(WINDOW_BYTES, self._room + num_bytes)
        self.start()

    def drain(self) -> None:
        """Read all remaining input now, regardless of the window, because no more will come."""
        while not self.is_over and self._read():
            pass

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # The last user of a terminal has gone.
            data = b""
        if not data:
            self.close()
            self._ended()
            return False
        data = self._change(data)
        self._room -= len(data)
        if self._room <= 0:
            self._pause()
        if data:
            self._send(data)
        return True

    def _pause(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._fd)

    def close(self) -> None:
        """Stop reading."""
        self._pause()
        self.is_over = True


class ByteSink:
    """Writes arriving data to a descriptor, as fast as it accepts it.

    All methods run on ``loop``. ``taken`` is called with the amount that was written or dropped;
    ``finish`` when all is written after ``end``.
    """

    def __init__(
        self,
        loop: IoLoop,
        fd: int,
        taken: Callable[[int], object],
        finish: Callable[[], object],
    ) -> None:
        self._loop, self._fd = loop, fd
        self._taken, self._finish = taken, finish
        self._waiting = bytearray()
        self._is_ending = self._is_writing = False
        self.is_broken = False  # True once the reader of the descriptor is gone.
        os.set_blocking(fd, False)

    def put(self, data: bytes) -> None:
        """Write ``data`` after the data that waits already."""
        self._waiting += data
        self._write()

    def end(self) -> None:
        """Note that no more data will come."""
        self._is_ending = True
        self._write()

    def _write(self) -> None:
        while self._waiting and not self.is_broken:
            try:
                written = os.write(self._fd, self._waiting)
            except BlockingIOError:
                if not self._is_writing:
                    self._is_writing = True
                    self._loop.add_writer(self._fd, self._write)
                return
            except OSError:
                self.is_broken = True
                break
            del self._waiting[:written]
            self._taken(written)
        if self._waiting:
            self._taken(len(self._waiting))
            self._waiting.clear()
        self.close()
        if self._is_ending:
            self._is_ending = False
            self._finish()

    def close(self) -> None:
        """Stop watching the descriptor."""
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._fd)
