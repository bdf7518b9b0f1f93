"""The transport between processes of one machine: Unix stream sockets.

ZeroMQ has a thread of its own on both sides of a socket. Here the sender writes into the kernel's
buffer itself, and the receiver's I/O loop reads it: that saves two thread switches for each
message.

Security: a socket is open to its user alone, lies in a directory that only the user can enter, and
the kernel is asked for the user that connects.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import socket
import struct

from monarch.net.framing import FramingError, Unframer
from monarch.net.io_loop import IoLoop
from monarch.net.rare_log import RareLog
from monarch.net.transport import Connection, Frames, Receive, close_all, take
from monarch.net.unix_connection import UnixConnection
from monarch.net.unix_socket import check_owner, open_private
from monarch.wire.keys import JobKeys

_log = logging.getLogger("monarch.net")

_READ_BYTES = 256 * 1024
_MAX_READS = 16
_PAUSE_SECONDS = 0.1


class UnixTransport:
    """All Unix sockets of a process."""

    def __init__(self, loop: IoLoop, receive: Receive, *, max_message_bytes: int = -1) -> None:
        self._loop = loop
        self._receive = receive
        self._max_message_bytes = max_message_bytes
        #: The listening sockets, and their paths.
        self._listeners: dict[socket.socket, str] = {}
        #: The sockets that peers send on.
        self._accepted: set[socket.socket] = set()
        #: What this process sends on.
        self._connections: set[UnixConnection] = set()
        #: Where small messages are read to. On the loop only.
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._rare = RareLog(_log)
        self._is_closed = False

    def listen(self, url: str) -> str:
        """Bind ``ipc://PATH``, and return this URL.

        Raises ``OSError`` if a process listens there already, and ``PermissionError`` in a folder
        that others can write to.
        """
        path = url.removeprefix("ipc://")
        try:
            listener = open_private(path)
        except OSError as error:
            if error.errno is None:
                raise
            raise OSError(error.errno, f"cannot listen at {url}: {error.strerror}") from None
        self._listeners[listener] = path
        self._loop.run_on_loop(lambda: self._watch(listener))
        return url

    def _watch(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener.fileno(), lambda: self._accept(listener))

    def connect(self, url: str) -> Connection:
        """Return a connection to ``url``. Raises ``PermissionError`` for a socket of another
        user."""
        path = url.removeprefix("ipc://")
        check_owner(path)
        connection = UnixConnection(self._loop, path, self._connections.discard)
        self._connections.add(connection)
        if self._is_closed:
            connection.close()
        return connection

    def use_keys(self, keys: JobKeys) -> None:
        """Do nothing: Unix sockets need no keys."""

    def allow_insecure(self) -> None:
        """Do nothing: other machines cannot reach a Unix socket."""

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                incoming, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._rare.warning(error.errno, "a connection could not be accepted: %s", error)
                # The same connection would be offered again at once, forever.
                self._loop.remove_reader(listener.fileno())
                self._loop.call_later(_PAUSE_SECONDS, lambda: self._watch(listener))
                return
            if not self._is_allowed(incoming):
                incoming.close()
                continue
            incoming.setblocking(False)
            self._accepted.add(incoming)
            receive = functools.partial(self._take, incoming)
            unframer = Unframer(receive, self._max_message_bytes)
            read = functools.partial(self._read, incoming, unframer)
            self._loop.add_reader(incoming.fileno(), read)

    def _take(self, incoming: socket.socket, frames: Frames) -> None:
        take(self._receive, frames, lambda: _describe(incoming), self._rare)

    def _read(self, incoming: socket.socket, unframer: Unframer) -> None:
        """Read what has arrived, up to a limit, so that other connections get their turn."""
        try:
            for _ in range(_MAX_READS):
                room = unframer.room
                count = incoming.recv_into(self._buffer if room is None else room)
                if not count:
                    self._drop(incoming)
                    return
                if room is not None:
                    unframer.filled(count)
                    continue
                unframer.feed(self._buffer[:count])
                if count < _READ_BYTES:
                    return
        except BlockingIOError:
            return
        except (OSError, FramingError) as error:
            if isinstance(error, FramingError):
                peer = _describe(incoming)
                self._rare.warning("framing", "closed a connection of %s: it sent %s", peer, error)
            self._drop(incoming)

    def _drop(self, incoming: socket.socket) -> None:
        self._accepted.discard(incoming)
        self._loop.remove_reader(incoming.fileno())
        incoming.close()

    def close(self) -> None:
        """Close everything; messages already sent get half a second to leave. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        close_all(self._loop, self._connections, self._close_sockets)

    def _close_sockets(self) -> None:
        for incoming in list(self._accepted):
            self._drop(incoming)
        for listener, path in self._listeners.items():
            self._loop.remove_reader(listener.fileno())
            listener.close()
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._listeners.clear()

    def _is_allowed(self, incoming: socket.socket) -> bool:
        """Return whether the peer is a process of our own user, or of root."""
        try:
            pid, uid = _credentials(incoming)
        except OSError as error:
            self._rare.warning(0, "refused a process on a Unix socket: %s", error)
            return False
        if uid in (os.geteuid(), 0):
            return True
        self._rare.warning(
            uid, "refused process %d of another user (uid %d) on a Unix socket", pid, uid
        )
        return False


def _credentials(incoming: socket.socket) -> tuple[int, int]:
    """Return the pid and the user of the peer, as the kernel reports them."""
    if not hasattr(socket, "SO_PEERCRED"):
        return 0, _peer_without_linux(incoming)
    size = struct.calcsize("3i")
    data = incoming.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid


def _peer_without_linux(incoming: socket.socket) -> int:
    """Return the user of the peer, as BSD systems report it. Raises ``OSError`` if they do not."""
    user, group = ctypes.c_uint32(), ctypes.c_uint32()
    ask = getattr(ctypes.CDLL(None, use_errno=True), "getpeereid", None)
    if ask is None or ask(incoming.fileno(), ctypes.byref(user), ctypes.byref(group)):
        raise OSError(ctypes.get_errno(), "the system does not tell who is at the other end")
    return user.value


def _describe(incoming: socket.socket) -> str:
    try:
        return f"process {_credentials(incoming)[0]}"
    except OSError:
        return "a process of this machine"
