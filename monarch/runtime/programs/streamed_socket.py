"""A connected socket whose bytes go through a stream to another process.

Both ends of a forwarded connection are such sockets, and both ends of an editor's session.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any

from monarch.net.io_loop import IoLoop
from monarch.runtime.answers import Response
from monarch.runtime.programs.byte_flows import ByteSink, ByteSource, Change
from monarch.runtime.programs.byte_streams import Streams
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import StreamData, StreamEnd, StreamRoom


class StreamedSocket:
    """One end of a stream. The end that asks for the stream sends stream 0 and receives stream 1;
    the end ``at_host``, which ``peer`` has asked, does the opposite.

    ``over`` is called once, on ``loop``, when the socket is closed. ``change`` changes the bytes of
    the socket before they are sent. An end with a ``farewell`` is not kept half open: as soon as
    either direction ends, it writes the farewell to the socket, and closes it.
    """

    def __init__(
        self,
        streams: Streams,
        loop: IoLoop,
        connection: socket.socket,
        uid: Uid,
        peer: ProcAddress,
        *,
        over: Callable[[], object],
        is_at_host: bool = False,
        change: Change = bytes,
        farewell: bytes = b"",
    ) -> None:
        self._streams, self._loop, self._connection = streams, loop, connection
        self._uid, self._peer, self._is_at_host = uid, peer, is_at_host
        self._over, self._farewell = over, farewell
        self._sends, self._receives = (1, 0) if is_at_host else (0, 1)
        #: Whether all that came before the end of the incoming stream is written.
        self._is_written = False
        fd = connection.fileno()
        self._source = ByteSource(loop, fd, self._send_data, self._on_source_end, change)
        self._sink = ByteSink(loop, fd, self._send_room, self._on_written)
        streams.add(uid, peer.uid, self, is_at_host=is_at_host)

    # On any thread.

    def start(self) -> None:
        """Start sending the socket's bytes to the other end."""
        self._loop.call_soon(self._source.start)

    def start_when(self, answer: Promise[Response[Any]]) -> None:
        """Start when the peer answers that it has the other end; close the socket if it has not."""

        def answered() -> None:
            if answer.value.error:
                self.close()
            elif self._is_closed:
                self._send_end(is_both=True)  # The peer did not know of the stream before.
            else:
                self.start()

        answer.on_set(answered)

    def close(self) -> None:
        """Close the socket, without the bytes that it has not taken."""
        self._loop.call_soon(self.close_now)

    def on_data(self, stream: int, data: bytes) -> None:
        self._loop.call_soon(lambda: self._put(data))

    def on_room(self, room: StreamRoom) -> None:
        self._loop.call_soon(lambda: self._source.taken(room.num_bytes))

    def on_end(self, end: StreamEnd) -> None:
        self._loop.call_soon(lambda: self._end(end.is_both))

    def on_over(self, status: int, reason: str) -> None:
        self.close()

    # On the loop.

    def _send_data(self, data: bytes) -> None:
        self._streams.send(self._peer, StreamData(self._uid, self._sends), data)

    def _send_room(self, num_bytes: int) -> None:
        self._streams.send(self._peer, StreamRoom(self._uid, self._receives, num_bytes))

    def _send_end(self, *, is_both: bool = False) -> None:
        self._streams.send(self._peer, StreamEnd(self._uid, self._sends, is_both))

    def _on_source_end(self) -> None:
        if not self._farewell:
            self._send_end()
        self._close_if_over()

    def _put(self, data: bytes) -> None:
        if not self._is_closed:
            self._sink.put(data)
            if self._sink.is_broken:
                self.close_now()  # The connected program is gone: the other end must hear of it.

    def _end(self, is_both: bool) -> None:
        """Write what has come, and no more; if ``is_both``, read no more either."""
        if self._is_closed:
            return
        if is_both:
            self._source.close()
        if self._farewell:
            self.close_now()
        elif self._is_written:
            self._close_if_over()
        else:
            self._sink.end()

    def _on_written(self) -> None:
        self._is_written = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        self._close_if_over()

    @property
    def _is_over(self) -> bool:
        return self._source.is_over and self._is_written

    def _close_if_over(self) -> None:
        if self._is_over or self._farewell:
            self.close_now()

    @property
    def _is_closed(self) -> bool:
        return self._connection.fileno() < 0

    def close_now(self) -> None:
        """Close the socket, and tell the other end unless both directions have ended."""
        if self._is_closed:
            return
        if not self._is_over:
            self._send_end(is_both=True)
        if self._farewell:
            self._sink.put(self._farewell)
        self._source.close()
        self._sink.close()
        self._connection.close()
        self._streams.remove(self._uid, is_at_host=self._is_at_host)
        self._over()
