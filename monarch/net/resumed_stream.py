"""A stream of frames that goes on over another connection when the first one breaks.

Frames are ``[kind][number][length][payload]``. Frames that must arrive are counted, and kept until
the other end acknowledges them. Over a new connection each end says how many it got, and the rest
is sent again. Needs Python 3.8, and only the standard library: see `gateway.py`.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import time
from collections import deque
from typing import Callable  # noqa: UP035 (Python 3.8)

_HEAD = struct.Struct("!BII")
_GREETING = struct.Struct("!8s8sQ")  # the sender, its partner before, frames it got of that
_NUMBER = struct.Struct("!Q")
_ACK, _ALIVE, _HELLO = range(200, 203)  # These are not counted. The user's kinds are below 200.

CHUNK_BYTES = 1 << 16
STEP_SECONDS = 1.0
_MAX_FRAME_BYTES = 1 << 20
_ACK_BYTES = 1 << 17
_SILENT_SECONDS = 6.0  # The connection counts as broken when nothing has come for so long.


class Broken(Exception):
    """The other end broke the protocol."""


class ResumedStream:
    """A stream of frames that survives its connection. For one thread only.

    ``take`` is called with each frame that arrives, ``on_broken`` when the connection breaks, and
    ``begin_anew`` when the other end was replaced by a new one, which knows no earlier frame.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        take: Callable[[int, int, bytes], None],
        on_broken: Callable[[], None],
        begin_anew: Callable[[], None],
    ) -> None:
        self._selector = selector
        self._take = take
        self._on_broken = on_broken
        self._begin_anew = begin_anew
        #: Names this end, so that the other end notices if it is replaced.
        self._own_id = os.urandom(8)
        #: The name of the other end; zeros before the first greeting.
        self._partner_id = bytes(8)
        #: The connection; None while it is broken.
        self._pipe: socket.socket | None = None
        #: Bytes that are not a whole frame yet, and bytes that the kernel has not taken.
        self._in = bytearray()
        self._out = bytearray()
        #: Whether the other end has said, on this connection, how many frames it got.
        self._is_greeted = False
        #: Sent frames that the other end may not have.
        self._kept: deque[bytes] = deque()
        #: How many frames the other end is known to have.
        self._num_acknowledged = 0
        #: How many frames have arrived here, and how many of them were acknowledged.
        self._num_got = 0
        self._num_reported = 0
        #: The bytes of the frames that are not acknowledged yet.
        self._bytes_unreported = 0
        #: When something was received, and sent, the last time.
        self._heard_at = self._sent_at = time.monotonic()
        self.bytes_in = self.bytes_out = 0

    def attach(self, pipe: socket.socket) -> None:
        """Use this socket as the connection from now on."""
        self.detach()
        pipe.setblocking(False)
        self._pipe = pipe
        self._is_greeted = False
        self._in.clear()
        self._out.clear()
        self._heard_at = time.monotonic()
        self._selector.register(pipe, selectors.EVENT_READ, self._on_pipe)
        self._write(_HELLO, 0, _GREETING.pack(self._own_id, self._partner_id, self._num_got))

    def detach(self) -> None:
        if self._pipe is not None:
            self._selector.unregister(self._pipe)
            self._pipe.close()
            self._pipe = None

    @property
    def is_attached(self) -> bool:
        return self._pipe is not None

    def look_after(self) -> None:
        """Send acknowledgements and probes that are due, and check whether the connection is alive.
        Call it in each step."""
        now = time.monotonic()
        if self._pipe is None:
            return
        if now - self._heard_at > _SILENT_SECONDS:
            self._break()
        elif self._bytes_unreported >= _ACK_BYTES or (
            self._num_got != self._num_reported and now - self._sent_at >= STEP_SECONDS / 4
        ):
            self._write(_ACK, 0, _NUMBER.pack(self._num_got))
            self._num_reported, self._bytes_unreported = self._num_got, 0
        elif now - self._sent_at >= STEP_SECONDS:
            self._write(_ALIVE, 0, b"")

    def _break(self) -> None:
        self.detach()
        self._on_broken()

    def send(self, kind: int, stream: int, payload: bytes = b"") -> None:
        """Send a frame that must arrive."""
        frame = _HEAD.pack(kind, stream, len(payload)) + payload
        self._kept.append(frame)
        if self._is_greeted and self._pipe is not None:
            self._push(frame)

    def _write(self, kind: int, stream: int, payload: bytes) -> None:
        self._push(_HEAD.pack(kind, stream, len(payload)) + payload)

    def _push(self, frame: bytes) -> None:
        self._sent_at = time.monotonic()
        was_empty = not self._out
        self._out += frame
        if was_empty:
            self._flush()

    def _flush(self) -> None:
        assert self._pipe is not None
        try:
            while self._out:
                sent = self._pipe.send(memoryview(self._out)[:CHUNK_BYTES])
                self.bytes_out += sent
                del self._out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._break()
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        if self._selector.get_key(self._pipe).events != wanted:
            self._selector.modify(self._pipe, wanted, self._on_pipe)

    def _on_pipe(self, events: int) -> None:
        if self._pipe is None:
            return  # It broke in this very step.
        if events & selectors.EVENT_WRITE:
            self._flush()
        if self._pipe is None or not events & selectors.EVENT_READ:
            return
        try:
            data = self._pipe.recv(4 * CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._break()
            return
        self.bytes_in += len(data)
        self._heard_at = time.monotonic()
        self._in += data
        try:
            self._take_frames()
        except (Broken, struct.error, UnicodeDecodeError, ValueError):
            self._break()

    def _take_frames(self) -> None:
        at, data = 0, self._in
        while len(data) - at >= _HEAD.size:
            kind, stream, length = _HEAD.unpack_from(data, at)
            if length > _MAX_FRAME_BYTES:
                raise Broken(f"a frame of {length} bytes")
            if len(data) - at < _HEAD.size + length:
                break
            payload = bytes(data[at + _HEAD.size : at + _HEAD.size + length])
            at += _HEAD.size + length
            if kind not in (_ACK, _ALIVE, _HELLO):
                self._num_got += 1
                self._bytes_unreported += length
            if kind == _HELLO:
                self._greeted(*_GREETING.unpack(payload))
            elif kind == _ACK:
                self._has_got(_NUMBER.unpack(payload)[0])
            elif kind != _ALIVE:
                self._take(kind, stream, payload)
            if self._pipe is None:
                return
        del data[:at]

    def _greeted(self, other: bytes, knew: bytes, num_got: int) -> None:
        if self._partner_id not in (bytes(8), other):
            self._kept.clear()
            self._num_acknowledged = self._num_got = self._num_reported = 0
            self._begin_anew()
        self._partner_id = other
        self._has_got(num_got if knew == self._own_id else 0)
        self._is_greeted = True
        for frame in list(self._kept):
            if self._pipe is not None:
                self._push(frame)

    def _has_got(self, num: int) -> None:
        while self._num_acknowledged < num and self._kept:
            self._kept.popleft()
            self._num_acknowledged += 1
