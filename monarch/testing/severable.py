"""The in-memory transport, with a cable that can be pulled."""

from __future__ import annotations

from monarch.net.inproc_transport import InprocNetwork, InprocTransport
from monarch.net.loop import Loop
from monarch.net.transport import Connection, Frames, Receive
from monarch.wire.keys import JobKeys

__all__ = ["SeverableTransport"]


class SeverableTransport:
    """Once severed, nothing comes in or goes out, and neither side is told."""

    def __init__(self, loop: Loop, receive: Receive, network: InprocNetwork) -> None:
        self._receive = receive
        self._inner = InprocTransport(loop, self._received, network)
        self.is_severed = False

    def sever(self) -> None:
        self.is_severed = True

    def _received(self, frames: Frames) -> None:
        if not self.is_severed:
            self._receive(frames)

    def listen(self, url: str) -> str:
        return self._inner.listen(url)

    def connect(self, url: str) -> Connection:
        return _SeverableConnection(self._inner.connect(url), self)

    def use_keys(self, keys: JobKeys) -> None:
        self._inner.use_keys(keys)

    def allow_insecure(self) -> None:
        self._inner.allow_insecure()

    def close(self) -> None:
        self._inner.close()


class _SeverableConnection:
    def __init__(self, connection: Connection, transport: SeverableTransport) -> None:
        self._connection = connection
        self._transport = transport

    def send(self, frames: Frames) -> None:
        if not self._transport.is_severed:
            self._connection.send(frames)

    def close(self, linger_seconds: float = 0.0) -> None:
        self._connection.close(linger_seconds)
