"""Routes the messages of streams to the host's or the client's side of a process.

A program that runs programs on `this_host()` has both sides.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from monarch.runtime.node import Node
from monarch.wire.codec import Envelope
from monarch.wire.message import StreamData, StreamEnd, StreamRoom

StreamEnvelope = Envelope[StreamData | StreamEnd | StreamRoom]
Handle = Callable[[StreamEnvelope], None]


class StreamRouter:
    """Routes the messages of streams within one node. Stream 0 leads to a host; messages about its
    room lead back to the client."""

    def __init__(self, node: Node) -> None:
        self.at_host: Handle = _drop
        self.at_client: Handle = _drop
        node.handle(StreamData, self._on_message)
        node.handle(StreamEnd, self._on_message)
        node.handle(StreamRoom, self._on_message)

    def _on_message(self, envelope: StreamEnvelope) -> None:
        message = envelope.message
        is_for_host = (message.stream == 0) != isinstance(message, StreamRoom)
        (self.at_host if is_for_host else self.at_client)(envelope)


_routers: weakref.WeakKeyDictionary[Node, StreamRouter] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def stream_router(node: Node) -> StreamRouter:
    """Return the stream router of this node."""
    with _making:
        if node not in _routers:
            _routers[node] = StreamRouter(node)
        return _routers[node]


def _drop(envelope: StreamEnvelope) -> None:
    """Drop a message of a stream that has ended or never existed."""
