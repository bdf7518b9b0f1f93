"""One connection to a port that this host reaches, for a client that forwards it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from monarch.net.io_loop import IoLoop
from monarch.runtime.programs.byte_flows import ByteSink, ByteSource
from monarch.wire.address import Uid
from monarch.wire.message import Message, StreamData, StreamEnd, StreamRoom


class StreamedSocket:
    """A connected socket, and a stream to another process; both ends of a forward use it.

    ``sends`` is the number of the outgoing stream, ``receives`` of the incoming one. All methods
    run on ``loop``. ``over`` is called once both directions have ended.
    """

    def __init__(
        self,
        loop: IoLoop,
        connection: socket.socket,
        uid: Uid,
        sends: int,
        receives: int,
        send: Callable[[Message, bytes], object],
        over: Callable[[], object],
    ) -> None:
        self._connection, self._over, self._send = connection, over, send
        self._uid, self._receives = uid, receives
        self._num_open = 2
        fd = connection.fileno()
        self._source = ByteSource(
            loop,
            fd,
            lambda data: send(StreamData(uid, sends), data),
            lambda: self._ended(StreamEnd(uid, sends)),
        )
        self._sink = ByteSink(loop, fd, self._taken, self._finish)

    def start(self) -> None:
        """Start sending the socket's data to the other end."""
        self._source.start()

    def put(self, data: bytes) -> None:
        """Write data to the socket."""
        if self._num_open:
            self._sink.put(data)
            if self._sink.is_broken:
                self.close()  # The connected program is gone: the other end must hear of it.

    def end(self) -> None:
        """Note that no more data comes for the socket."""
        if self._num_open:
            self._sink.end()

    def taken(self, num_bytes: int) -> None:
        if self._num_open:
            self._source.taken(num_bytes)

    def _taken(self, num_bytes: int) -> None:
        self._send(StreamRoom(self._uid, self._receives, num_bytes), b"")

    def _finish(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        self._ended(None)

    def _ended(self, message: Message | None) -> None:
        if message is not None:
            self._send(message, b"")
        self._num_open -= 1
        if self._num_open == 0:
            self.close()

    def close(self) -> None:
        """Close the socket at once."""
        if self._connection.fileno() < 0:
            return
        self._num_open = 0
        self._source.close()
        self._sink.close()
        self._connection.close()
        self._over()
