"""The transport between machines: ZeroMQ over TCP.

A process receives on PULL sockets, which its I/O loop owns, and sends on one PUSH socket a
peer, on the caller's own thread under the connection's lock. One PUSH to one PULL keeps order.

Security: a listener has CURVE keys and an allow-list, or binds to loopback only (see ``gate``).
Nothing is decoded before that.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable

import zmq

from monarch.net.gate import Gate, GateLimits, is_loopback
from monarch.net.loop import Loop
from monarch.net.rare_log import RareLog
from monarch.net.transport import Connection, Frames, Receive, close_all, take
from monarch.wire.keys import JobKeys

_log = logging.getLogger("monarch.net")

_ZERO_COPY_BYTES = 64 * 1024
_MAX_BATCH = 128
_RETRY_SECONDS = 0.1
_FOR_A_MOMENT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NUM_NEEDED = 12
"""More descriptors than ZeroMQ's threads take: without them it ends the process."""
_MIN_FRAME_BYTES = 4 * 2**20
"""A lower limit would keep out the chunks that large messages travel in."""


class ZmqTransport:
    """All ZeroMQ sockets of a process. ``keys`` are the job's; without them it listens on loopback
    only.

    ``max_frame_bytes`` is the largest frame that a listener accepts, also from peers before their
    handshake: large messages come in chunks, so none has to fit. Negative: no limit.
    """

    def __init__(
        self,
        loop: Loop,
        receive: Receive,
        keys: JobKeys | None = None,
        *,
        insecure: bool = False,
        max_frame_bytes: int = -1,
        gate_limits: GateLimits = GateLimits(),  # noqa: B008
    ) -> None:
        self._loop = loop
        self._receive = receive
        #: The job's keys; None: listeners are on loopback only, unless ``_insecure``.
        self._keys = keys
        self._insecure = insecure
        #: The largest frame that is accepted; negative: no limit.
        self._max_frame_bytes = (
            max_frame_bytes if max_frame_bytes < 0 else max(max_frame_bytes, _MIN_FRAME_BYTES)
        )
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 16_384)
        self._listeners: list[zmq.Socket[bytes]] = []
        self._connections: set[ZmqConnection] = set()
        #: Admits peers at the listeners.
        self._gate = Gate(loop, self._context, gate_limits)
        self._rare = RareLog(_log)
        #: Whether this process had enough descriptors for ZeroMQ.
        self._has_begun = False
        self._is_closed = False

    def use_keys(self, keys: JobKeys) -> None:
        """Use these keys for listeners and connections made from here on."""
        self._keys = keys

    def allow_insecure(self) -> None:
        """Listen beyond loopback without keys from here on."""
        self._insecure = True

    def listen(self, url: str) -> str:
        """Bind ``tcp://HOST:PORT`` (port 0: any free one); return the URL with the actual port.

        Raises ``PermissionError`` for an address beyond loopback without keys, ``OSError`` for an
        address in use.
        """
        self._begin()
        socket = self._context.socket(zmq.PULL)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, self._max_frame_bytes)
        try:
            self._bind(socket, url)
        except BaseException as error:
            socket.close(0)
            if isinstance(error, OSError | zmq.ZMQError) and error.errno is not None:
                raise OSError(error.errno, f"cannot listen at {url}: {error.strerror}") from None
            raise
        bound: bytes = socket.getsockopt(zmq.LAST_ENDPOINT)  # type: ignore[assignment]
        self._listeners.append(socket)
        self._loop.call_soon(lambda: self._watch(socket))
        return bound.rstrip(b"\0").decode()

    def _begin(self) -> None:
        """Check once that this process has enough free descriptors for ZeroMQ. Raises ``OSError``
        if not."""
        if self._has_begun:
            return
        held: list[int] = []
        try:
            for _ in range(_NUM_NEEDED):
                held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        finally:
            for fd in held:
                os.close(fd)
        self._has_begun = True

    def _watch(self, socket: zmq.Socket[bytes]) -> None:
        # The descriptor reports only changes, so earlier messages are read once now.
        self._loop.add_reader(socket.getsockopt(zmq.FD), lambda: self._drain(socket))  # type: ignore[arg-type]
        self._drain(socket)

    def _bind(self, socket: zmq.Socket[bytes], url: str) -> None:
        if self._keys is None and not self._insecure and not is_loopback(url):
            raise PermissionError(
                f"refusing to listen at {url} without a job secret: whoever can connect could "
                "run code here. Start the host through a job, which makes a secret, or set "
                "MONARCH_JOB_SECRET to the same 64 hexadecimal digits on both sides. In a network "
                "where you trust everybody, insecure=True does without"
            )
        self._gate.bind(socket, url, self._keys)

    def connect(self, url: str) -> Connection:
        if self._is_closed:
            return _Nowhere()
        connection = ZmqConnection(
            self._loop,
            lambda: self._connected(url),
            url,
            max_frame_bytes=self._max_frame_bytes,
            forget=self._connections.discard,
            rare=self._rare,
        )
        self._connections.add(connection)
        return connection

    def _connected(self, url: str) -> zmq.Socket[bytes]:
        """Return a new socket that connects to ``url``. Raises ``OSError`` if ZeroMQ cannot make
        it."""
        self._begin()
        try:
            socket = self._context.socket(zmq.PUSH)
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"cannot connect to {url!r}: {error.strerror}") from None
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        if self._keys is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, self._keys.listener.public)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.connector.public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.connector.private)
        try:
            socket.connect(url)
        except zmq.ZMQError as error:
            socket.close(0)
            raise OSError(error.errno, f"cannot connect to {url!r}: {error.strerror}") from None
        return socket

    def _drain(self, socket: zmq.Socket[bytes]) -> None:
        # A bounded batch, so that one busy peer does not starve timers and other sources.
        for _ in range(_MAX_BATCH):
            if socket.closed:
                return
            try:
                parts = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            frames = [part.bytes if len(part) < 1024 else part.buffer for part in parts]
            take(self._receive, frames, functools.partial(_address_of, parts[0]), self._rare)
        self._loop.call_soon(lambda: self._drain(socket))

    def close(self) -> None:
        """Close everything; messages already sent get half a second to leave. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if close_all(self._loop, self._connections, self._close_listeners):
            # Not if the loop is stuck: this would wait for its sockets forever.
            self._context.term()

    def _close_listeners(self) -> None:
        self._gate.close()
        for socket in self._listeners:
            self._loop.remove_reader(socket.getsockopt(zmq.FD))  # type: ignore[arg-type]
            socket.close(0)
        self._listeners.clear()


def _address_of(frame: zmq.Frame) -> str:
    try:
        return str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return "a peer"


class ZmqConnection:
    """A PUSH socket and the lock that lets any thread send on it.

    If the listener is no member of the job, ZeroMQ abandons the connection for good, with all
    frames that were sent. Later frames are dropped too: no frame may arrive after a missing one. If
    the process is out of descriptors, frames wait until it has one again.
    """

    def __init__(
        self,
        loop: Loop,
        connected: Callable[[], zmq.Socket[bytes]],
        url: str,
        *,
        max_frame_bytes: int,
        forget: Callable[[ZmqConnection], None],
        rare: RareLog,
    ) -> None:
        self._loop = loop
        #: Returns a new socket that connects to the URL. Raises ``OSError``.
        self._connected = connected
        #: None while the process is out of descriptors. Under the lock, as the next two.
        self._socket: zmq.Socket[bytes] | None = None
        #: Messages that wait for the socket.
        self._waiting: deque[Frames] = deque()
        self._is_closed = False
        self._url = url
        self._max_frame_bytes = max_frame_bytes
        self._lock = threading.Lock()
        #: Called when the connection is closed.
        self._forget = forget
        self._rare = rare
        self._connect()

    def _connect(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            try:
                self._socket = self._connected()
            except OSError as error:
                if error.errno not in _FOR_A_MOMENT:
                    raise
                self._rare.warning(error.errno, "%s; trying again", error.strerror)
                self._loop.call_later(_RETRY_SECONDS, self._connect)
                return
            while self._waiting and self._write(self._waiting.popleft()):
                pass

    def send(self, frames: Frames) -> None:
        """Send a message. Raises ``ValueError`` for a frame beyond the limit, on which its receiver
        would hang up."""
        largest = max(map(len, frames), default=0)
        if 0 <= self._max_frame_bytes < largest:
            raise ValueError(
                f"a frame of {largest} bytes is beyond the limit of {self._max_frame_bytes}: raise "
                "the setting max_frame_bytes (MONARCH_MAX_FRAME_BYTES) on both sides"
            )
        with self._lock:
            if self._is_closed:
                return
            if self._socket is None:
                self._waiting.append(frames)
            elif not self._socket.closed:
                self._write(frames)

    def _write(self, frames: Frames) -> bool:
        """Give frames to ZeroMQ; return whether it took them. Call it under the lock."""
        assert self._socket is not None
        last = len(frames) - 1
        try:
            for index, frame in enumerate(frames):
                more = zmq.SNDMORE if index < last else 0
                # Without a limit there is always room, unless ZeroMQ has given up.
                flags = more | zmq.NOBLOCK
                self._socket.send(frame, flags, copy=len(frame) < _ZERO_COPY_BYTES)
            return True
        except zmq.Again:
            self._socket.close(0)
            self._waiting.clear()
        self._rare.warning(
            self._url,
            "what listens at %s is no member of this job, or has another secret: nothing that is "
            "sent there arrives",
            self._url,
        )
        return False

    def close(self, linger_seconds: float = 0.0) -> None:
        with self._lock:
            self._is_closed = True
            self._waiting.clear()
            if self._socket is not None:
                self._socket.close(int(linger_seconds * 1000))
        self._forget(self)


class _Nowhere:
    """A connection of a transport that is closed already: it drops everything."""

    def send(self, frames: Frames) -> None: ...

    def close(self, linger_seconds: float = 0.0) -> None: ...
