"""The sending end of a Unix stream socket."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from monarch.net import cork
from monarch.net.framing import frame
from monarch.net.io_loop import IoLoop
from monarch.net.transport import Bytes, Frames

_FIRST_RETRY_SECONDS = 0.02
_LAST_RETRY_SECONDS = 1.0
_SEND_BUFFER_BYTES = 1 << 20
_MAX_VECTORS = 512

_QUIET_SECONDS = 0.002
"""A message that follows another one within this time, with no wait between them, is held back."""
_MAX_HELD_BYTES = 64 * 1024
_MAX_HELD_MESSAGES = 256


class UnixConnection:
    """Writes on the caller's thread, straight into the kernel's buffer, so that no thread is woken
    here.

    In a burst, small messages are held back until the sender waits (see ``monarch.net.cork``).
    Bytes that the kernel does not take are queued, and written by the I/O loop. A connection that
    breaks, or that finds no listener yet, tries again until it is closed; queued messages stay, and
    a message that was cut off is sent again from its start.
    """

    def __init__(self, loop: IoLoop, path: str, forget: Callable[[UnixConnection], None]) -> None:
        self._loop = loop
        self._path = path
        self._forget = forget
        self._lock = threading.Lock()
        #: The messages that are not written yet.
        self._queue: deque[list[Bytes]] = deque()
        #: How many bytes of the first message in the queue are written.
        self._num_sent = 0
        #: About how many bytes were held back since the last write.
        self._num_held = 0
        #: When the last write was, on ``time.perf_counter``.
        self._last_write = 0.0
        #: The value of ``cork.waits`` at the last write.
        self._num_waits = 0
        #: None while there is no connection.
        self._socket: socket.socket | None = None
        #: Whether the loop writes the queue when the kernel has room again.
        self._is_watched = False
        self._is_closed = False
        #: How long to wait before the next attempt to connect.
        self._retry_seconds = _FIRST_RETRY_SECONDS
        with self._lock:
            self._connect()

    def send(self, frames: Frames) -> None:
        data = frame(frames)
        with self._lock:
            if self._is_closed:
                return
            self._queue.append(data)
            if self._socket is None or self._is_watched:
                return
            self._num_held += len(data[-1])
            now = time.perf_counter()
            if (
                self._num_waits != cork.waits
                or now - self._last_write > _QUIET_SECONDS
                or self._num_held > _MAX_HELD_BYTES
                or len(self._queue) >= _MAX_HELD_MESSAGES
                or self._loop.is_current()
            ):
                self._last_write = now
                self._num_waits = cork.waits
                self._flush()
                return
            is_first = len(self._queue) == 1
        if is_first:
            cork.cork(self, self._loop)

    def uncork(self) -> None:
        """Write the messages that were held back. From any thread."""
        with self._lock:
            if self._queue and self._socket is not None and not self._is_watched:
                self._last_write = time.perf_counter()
                self._flush()

    def _connect(self) -> None:
        """Connect to the listener, or try again later. Call it under the lock."""
        connecting: socket.socket | None = None
        try:
            # Also a lack of descriptors passes.
            connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connecting.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            connecting.setblocking(False)
            connecting.connect(self._path)
        except OSError:
            if connecting is not None:
                connecting.close()
            self._retry()
            return
        self._socket = connecting
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._flush()

    def _retry(self) -> None:
        self._loop.call_later(self._retry_seconds, self._connect_again)
        self._retry_seconds = min(2 * self._retry_seconds, _LAST_RETRY_SECONDS)

    def _connect_again(self) -> None:
        with self._lock:
            if not self._is_closed and self._socket is None:
                self._connect()

    def _flush(self) -> None:
        """Write as much of the queue as the kernel takes. Call it under the lock."""
        assert self._socket is not None
        self._num_held = 0
        try:
            while self._queue:
                self._write(self._socket)
        except BlockingIOError:
            if not self._is_watched:
                self._is_watched = True
                self._loop.call_soon(self._watch)
        except OSError:
            self._drop()
            self._retry()
        except BaseException:
            # It was interrupted, and how much was written is unknown: the receiver must not take
            # the next message for the rest of this one.
            self._queue.clear()
            self._drop()
            self._retry()
            raise

    def _write(self, out: socket.socket) -> None:
        """Write from the queue's front. Raises if the kernel takes nothing."""
        queue = self._queue
        if len(queue) == 1 and len(queue[0]) == 1 and not self._num_sent:
            count = out.send(queue[0][0])
        else:
            first = _after(queue[0], self._num_sent)
            rest = itertools.chain(first, *itertools.islice(queue, 1, _MAX_HELD_MESSAGES))
            count = out.sendmsg(list(itertools.islice(rest, _MAX_VECTORS)))
        count += self._num_sent
        while queue and (size := sum(map(len, queue[0]))) <= count:
            count -= size
            queue.popleft()
        self._num_sent = count

    def _drop(self) -> None:
        """Close the socket, but not the connection, which connects again. Call it under the
        lock."""
        self._num_sent = 0
        broken, self._socket = self._socket, None
        if broken is not None:
            self._dispose(broken)

    def _dispose(self, done: socket.socket) -> None:
        if not self._is_watched:
            done.close()
            return
        self._is_watched = False

        def unwatch() -> None:
            self._loop.remove_writer(done.fileno())
            done.close()

        if not self._loop.call_soon(unwatch):
            done.close()

    def _watch(self) -> None:
        with self._lock:
            if self._socket is not None and self._is_watched:
                self._loop.add_writer(self._socket.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        with self._lock:
            if self._socket is None:
                return
            self._flush()
            if self._socket is not None and not self._queue:
                self._loop.remove_writer(self._socket.fileno())
                self._is_watched = False

    def close(self, linger_seconds: float = 0.0) -> None:
        """Close the connection; queued messages get ``linger_seconds`` to leave."""
        with self._lock:
            if not self._is_closed and self._socket is not None:
                self._linger(self._socket, linger_seconds)
            self._is_closed = True
            self._queue.clear()
            self._drop()
        self._forget(self)

    def _linger(self, out: socket.socket, seconds: float) -> None:
        out.settimeout(seconds)
        with contextlib.suppress(OSError):
            while self._queue:
                self._write(out)


def _after(data: Sequence[Bytes], num_sent: int) -> list[Bytes]:
    """Return the rest of ``data`` after its first ``num_sent`` bytes."""
    for index, part in enumerate(data):
        if num_sent < len(part):
            return [memoryview(part)[num_sent:], *data[index + 1 :]]
        num_sent -= len(part)
    return []
