"""The streams of bytes between this process and others: each message goes to its end here."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from monarch.runtime.node import Node
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import (
    Message,
    ProcDown,
    ProgramBegun,
    ProgramEnded,
    StreamData,
    StreamEnd,
    StreamRoom,
)

LOST = 255
"""The status of a program that was lost with its host, as for ssh."""


Handle = Callable[[Envelope[StreamData | StreamEnd | StreamRoom]], None]


class Stream(Protocol):
    """A receiver of the messages of one uid. On the I/O loop, so it must not block."""

    def on_data(self, stream: int, data: bytes) -> None: ...

    def on_room(self, room: StreamRoom) -> None: ...

    def on_end(self, end: StreamEnd) -> None: ...

    def on_over(self, status: int, reason: str) -> None: ...


class Streams:
    """Passes the messages of programs and streamed sockets to their receivers, by uid.

    Use ``streams_of``. ``at_host`` gets the messages for the programs of the host agent in this
    process, if it has one.
    """

    def __init__(self, node: Node) -> None:
        self.at_host: Handle | None = None
        self._node = weakref.ref(node)
        #: By uid, and whether it is the end at the host, as both ends may be in one process: the
        #: uid of the process at the other end, and the receiver.
        self._streams: dict[tuple[Uid, bool], tuple[Uid, Stream]] = {}
        node.handle(StreamData, self._on_stream)
        node.handle(StreamEnd, self._on_stream)
        node.handle(StreamRoom, self._on_stream)
        node.on(ProgramEnded, self._on_program_ended)
        node.peer_down.on_down.append(self._on_peer_down)

    def add(self, uid: Uid, peer: Uid, stream: Stream, *, is_at_host: bool = False) -> None:
        """Pass messages of ``uid``, and the end of the process ``peer``, to ``stream`` from now
        on."""
        self._streams[uid, is_at_host] = peer, stream

    def remove(self, uid: Uid, *, is_at_host: bool = False) -> None:
        self._streams.pop((uid, is_at_host), None)

    def send(self, to: ProcAddress, message: Message, payload: bytes = b"") -> None:
        """Send a message, unless its receiver is gone."""
        node = self._node()
        with contextlib.suppress(Exception):  # This process is about to leave the network.
            if node is not None and node.failure_of(to.uid) is None:
                node.send(to, message, payload)

    def watch(self, host: ProcAddress, begun: ProgramBegun) -> None:
        """Watch for the end of a host's agent, whose process ``begun`` names."""
        node = self._node()
        if node is None:
            return
        address = ProcAddress(host.uid, host.urls, begun.machine)
        down = ProcDown(host.uid, "the host agent's process ended", expected=True)
        node.failure_detector.watch(address, begun.pid, lambda: node.peer_down.report(down))

    def _on_stream(self, envelope: Envelope[StreamData | StreamRoom | StreamEnd]) -> None:
        message = envelope.message
        # Stream 0 leads to a host; messages about its room lead back to the client.
        is_at_host = (message.stream == 0) != isinstance(message, StreamRoom)
        _, stream = self._streams.get((message.uid, is_at_host), ("", None))
        if stream is None:
            if is_at_host and self.at_host is not None:
                self.at_host(envelope)
        elif isinstance(message, StreamData):
            stream.on_data(message.stream, bytes(envelope.payload))
        elif isinstance(message, StreamRoom):
            stream.on_room(message)
        else:
            stream.on_end(message)

    def _on_program_ended(self, message: ProgramEnded) -> None:
        _, stream = self._streams.pop((message.uid, False), ("", None))
        if stream is not None:
            stream.on_over(message.status, message.reason)

    def _on_peer_down(self, uid: Uid, down: ProcDown) -> None:
        for key, (peer, stream) in list(self._streams.items()):
            if peer == uid:
                self._streams.pop(key, None)
                stream.on_over(LOST, f"its host was lost: {down.reason}")


_streams: weakref.WeakKeyDictionary[Node, Streams] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def streams_of(node: Node) -> Streams:
    """Return the streams of the process that has this node."""
    with _making:
        if node not in _streams:
            _streams[node] = Streams(node)
        return _streams[node]
