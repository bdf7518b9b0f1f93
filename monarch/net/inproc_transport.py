"""The transport within one process, for tests and simulations."""

from __future__ import annotations

import threading

from monarch.net.loop import Loop
from monarch.net.transport import Frames, Receive
from monarch.wire.keys import JobKeys


class InprocNetwork:
    """The network between in-process transports: listeners by URL, and messages that wait for a
    listener."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[str, InprocTransport] = {}
        self._early: dict[str, list[Frames]] = {}

    def attach(self, url: str, transport: InprocTransport) -> None:
        with self._lock:
            if url in self._listeners:
                raise OSError(f"cannot listen at {url}: Address already in use")
            self._listeners[url] = transport
            for frames in self._early.pop(url, []):
                transport.deliver(frames)

    def detach(self, transport: InprocTransport) -> None:
        with self._lock:
            gone = [url for url, owner in self._listeners.items() if owner is transport]
            for url in gone:
                del self._listeners[url]

    def send(self, url: str, frames: Frames) -> None:
        with self._lock:
            listener = self._listeners.get(url)
            if listener is None:
                self._early.setdefault(url, []).append(frames)
            else:
                listener.deliver(frames)


class InprocTransport:
    """A transport whose connections hand frames to another in-process transport's I/O loop."""

    def __init__(self, loop: Loop, receive: Receive, network: InprocNetwork) -> None:
        self._loop = loop
        self._receive = receive
        self._network = network
        self._connections: list[InprocConnection] = []
        self._closed = False

    def listen(self, url: str) -> str:
        self._network.attach(url, self)
        return url

    def connect(self, url: str) -> InprocConnection:
        connection = InprocConnection(url, self._network)
        self._connections.append(connection)
        return connection

    def use_keys(self, keys: JobKeys) -> None:
        """Do nothing: a transport within one process needs no keys."""

    def allow_insecure(self) -> None:
        """Do nothing: other machines cannot reach a transport within one process."""

    def deliver(self, frames: Frames) -> None:
        # Copied, as any transport between processes would: later changes are not seen.
        copies = [bytes(frame) for frame in frames]
        self._loop.call_soon(lambda: None if self._closed else self._receive(copies))

    def close(self) -> None:
        self._closed = True
        self._network.detach(self)
        for connection in self._connections:
            connection.close()


class InprocConnection:
    def __init__(self, url: str, network: InprocNetwork) -> None:
        self._url = url
        self._network: InprocNetwork | None = network

    def send(self, frames: Frames) -> None:
        if self._network is not None:
            self._network.send(self._url, frames)

    def close(self, linger_seconds: float = 0.0) -> None:
        self._network = None
