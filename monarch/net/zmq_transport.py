"""The transport between processes: ZeroMQ over Unix sockets and TCP.

A process receives on PULL sockets, which its I/O loop owns, and sends on one PUSH socket a
peer, on the caller's own thread under the connection's lock: a call costs no thread switch on
its way out. One PUSH to one PULL keeps order.

Security: a TCP listener has CURVE keys and an allow-list, or binds to loopback only. A Unix
socket lies in a directory that only its user can enter. Nothing is decoded before that.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import threading
from collections.abc import Callable
from socket import AF_UNIX, gethostbyname
from socket import socket as RawSocket
from urllib.parse import urlsplit

import zmq
from zmq.auth.thread import ThreadAuthenticator

from monarch.net.io_loop import IoLoop
from monarch.net.transport import Connection, Frames, Receive
from monarch.wire.keys import JobKeys

__all__ = ["ZmqTransport"]

_HANDSHAKE_MS = 10_000
_ZERO_COPY_BYTES = 64 * 1024
_MAX_BATCH = 128


class ZmqTransport:
    """All ZeroMQ sockets of a process. ``keys`` are a job's; without them TCP is loopback only."""

    def __init__(
        self,
        loop: IoLoop,
        receive: Receive,
        keys: JobKeys | None = None,
        *,
        insecure: bool = False,
        max_message_bytes: int = -1,
    ) -> None:
        self._loop = loop
        self._receive = receive
        self._keys = keys
        self._insecure = insecure
        self._max_message_bytes = max_message_bytes
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 16_384)
        self._listeners: list[zmq.Socket[bytes]] = []
        self._connections: set[ZmqConnection] = set()
        self._authenticator: ThreadAuthenticator | None = None
        self._paths: list[str] = []
        self._is_closed = False

    def use_keys(self, keys: JobKeys) -> None:
        """Use these keys for listeners and connections made from here on."""
        self._keys = keys

    def listen(self, url: str) -> str:
        """Bind ``ipc://PATH`` or ``tcp://HOST:PORT`` (port 0: any free one).

        Raises ``PermissionError`` for a TCP address beyond loopback without keys, ``OSError``
        for one that is in use.
        """
        socket = self._context.socket(zmq.PULL)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, self._max_message_bytes)
        try:
            if url.startswith("tcp://"):
                self._secure(socket, url)
            bound = self._bind(socket, url)
        except BaseException:
            socket.close(0)
            raise
        self._listeners.append(socket)
        self._loop.run_on_loop(lambda: self._loop.add_reader(socket, lambda: self._drain(socket)))
        return bound

    def _bind(self, socket: zmq.Socket[bytes], url: str) -> str:
        if url.startswith("ipc://") and _is_answered(url.removeprefix("ipc://")):
            # ZeroMQ would take the path away from whoever listens there.
            raise OSError(errno.EADDRINUSE, f"cannot listen at {url}: Address already in use")
        try:
            socket.bind(_numeric(url))
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"cannot listen at {url}: {error.strerror}") from None
        bound: bytes = socket.getsockopt(zmq.LAST_ENDPOINT)  # type: ignore[assignment]
        name = bound.rstrip(b"\0").decode()
        if name.startswith("ipc://"):
            path = name.removeprefix("ipc://")
            os.chmod(path, 0o600)
            self._paths.append(path)
        return name

    def _secure(self, socket: zmq.Socket[bytes], url: str) -> None:
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        if self._keys is not None:
            self._authenticate()
            socket.setsockopt(zmq.ZAP_DOMAIN, b"monarch")
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.listener.public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.listener.private)
        elif not self._insecure and not is_loopback(url):
            raise PermissionError(
                f"refusing to listen at {url} without a job secret: whoever can connect could "
                "run code here. Start the host through a job, which makes a secret, or set "
                "MONARCH_JOB_SECRET to the same 64 hexadecimal digits on both sides"
            )

    def _authenticate(self) -> None:
        if self._authenticator is None:
            assert self._keys is not None
            self._authenticator = ThreadAuthenticator(self._context)
            self._authenticator.start()
            self._authenticator.configure_curve_callback("monarch", _AllowList(self._keys))

    def connect(self, url: str) -> Connection:
        if self._is_closed:
            return _Nowhere()
        socket = self._context.socket(zmq.PUSH)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        if url.startswith("tcp://") and self._keys is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, self._keys.listener.public)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.connector.public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.connector.private)
        socket.connect(url)
        connection = ZmqConnection(socket, self._connections.discard)
        self._connections.add(connection)
        return connection

    def _drain(self, socket: zmq.Socket[bytes]) -> None:
        # A bounded batch, so that one busy peer does not starve timers and other sources.
        for _ in range(_MAX_BATCH):
            try:
                parts = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._receive([part.bytes if len(part) < 1024 else part.buffer for part in parts])

    def close(self) -> None:
        """Close everything; what was sent gets half a second to leave. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        for connection in list(self._connections):
            connection.close(linger_seconds=0.5)
        try:
            self._loop.run_on_loop(self._close_listeners, timeout=1.0)
        except TimeoutError:
            return  # The loop is stuck: ending the context would wait for its sockets for ever.
        except RuntimeError:
            self._close_listeners()
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()
        for path in self._paths:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _close_listeners(self) -> None:
        for socket in self._listeners:
            self._loop.remove_reader(socket)
            socket.close(0)
        self._listeners.clear()


class ZmqConnection:
    """A PUSH socket and the lock that lets any thread send on it."""

    def __init__(self, socket: zmq.Socket[bytes], forget: Callable[[ZmqConnection], None]) -> None:
        self._socket = socket
        self._lock = threading.Lock()
        self._forget = forget

    def send(self, frames: Frames) -> None:
        with self._lock:
            if self._socket.closed:
                return
            last = len(frames) - 1
            for index, frame in enumerate(frames):
                more = zmq.SNDMORE if index < last else 0
                self._socket.send(frame, more, copy=len(frame) < _ZERO_COPY_BYTES)

    def close(self, linger_seconds: float = 0.0) -> None:
        with self._lock:
            self._socket.close(int(linger_seconds * 1000))
        self._forget(self)


class _Nowhere:
    """The connections of a transport that is closed already."""

    def send(self, frames: Frames) -> None: ...

    def close(self, linger_seconds: float = 0.0) -> None: ...


class _AllowList:
    """Admits who holds the job's secret, and so the one key that connectors have."""

    def __init__(self, keys: JobKeys) -> None:
        self._allowed = keys.connector.public

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._allowed


def _numeric(url: str) -> str:
    """The URL with its host name resolved: ZeroMQ binds to addresses only."""
    if not url.startswith("tcp://"):
        return url
    parts = urlsplit(url)
    return f"tcp://{gethostbyname(parts.hostname or '')}:{parts.port}"


def _is_answered(path: str) -> bool:
    """Whether somebody listens at a Unix socket; a file left by the dead does not count."""
    with RawSocket(AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def is_loopback(url: str) -> bool:
    """Whether only this machine can reach a TCP URL."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
