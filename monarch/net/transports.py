"""All the transports of a process behind one interface: the URL decides."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from monarch.net.io_loop import IoLoop
from monarch.net.transport import Connection, Receive, Transport
from monarch.net.unix_transport import UnixTransport
from monarch.wire.keys import JobKeys

if TYPE_CHECKING:
    from monarch.net.zmq_transport import ZmqTransport


class Transports:
    """The transports of a process: ``ipc://`` URLs go over Unix sockets, ``tcp://`` URLs over
    ZeroMQ.

    The ZeroMQ transport is made at the first ``tcp://`` URL.
    """

    def __init__(
        self,
        loop: IoLoop,
        receive: Receive,
        keys: JobKeys | None = None,
        *,
        max_message_bytes: int = -1,
        max_frame_bytes: int = -1,
    ) -> None:
        self._loop = loop
        self._receive = receive
        self._keys = keys
        #: Whether to listen beyond loopback without keys.
        self._is_insecure = False
        self._max_frame_bytes = max_frame_bytes
        self._unix = UnixTransport(loop, receive, max_message_bytes=max_message_bytes)
        #: Made at the first TCP URL.
        self._tcp: ZmqTransport | None = None
        self._making = threading.Lock()
        #: Maps a TCP URL to a local URL that leads there through a gateway; None without a gateway.
        self._way_to: Callable[[str], str] | None = None
        #: URLs that are connected to in place of others.
        self._replaced_urls: dict[str, str] = {}

    def use_keys(self, keys: JobKeys) -> None:
        """Use these keys over TCP from here on."""
        self._keys = keys
        if self._tcp is not None:
            self._tcp.use_keys(keys)

    def allow_insecure(self) -> None:
        """Listen over TCP beyond loopback without keys from here on."""
        self._is_insecure = True
        if self._tcp is not None:
            self._tcp.allow_insecure()

    def go_by(self, way_to: Callable[[str], str]) -> None:
        """Reach TCP addresses through a gateway from now on; ``way_to`` maps a URL to a local
        address."""
        self._way_to = way_to

    def reach_at(self, url: str, replacement: str) -> None:
        """Connect to ``replacement`` whenever ``url`` is asked for, from now on."""
        self._replaced_urls[url] = replacement

    def listen(self, url: str) -> str:
        return self._of(url).listen(url)

    def connect(self, url: str) -> Connection:
        url = self._replaced_urls.get(url, url)
        transport = self._of(url)
        if transport is not self._unix and self._way_to is not None:
            url = self._way_to(url)
        return transport.connect(url)

    def _of(self, url: str) -> Transport:
        if url.startswith("ipc://"):
            return self._unix
        # Two actors may be the first at the same time.
        with self._making:
            if self._tcp is None:
                # ZeroMQ costs two threads and an import that most processes never need.
                from monarch.net.zmq_transport import ZmqTransport

                self._tcp = ZmqTransport(
                    self._loop,
                    self._receive,
                    self._keys,
                    insecure=self._is_insecure,
                    max_frame_bytes=self._max_frame_bytes,
                )
            return self._tcp

    def close(self) -> None:
        """Close all transports. Idempotent."""
        self._unix.close()
        if self._tcp is not None:
            self._tcp.close()
