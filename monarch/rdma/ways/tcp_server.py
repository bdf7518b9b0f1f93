"""The owner's end of data sockets: moves bytes between them and registered memory.

Each connection has a thread, which ends when the other end closes. It never waits for the owner's
program: neither its actors nor its loops.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import struct
import threading
import time
from collections.abc import Sequence

from monarch.config import settings
from monarch.errors import RemoteMemoryError
from monarch.rdma.memory.device_memory import on_host, registered_part, staged
from monarch.rdma.memory.layout import Run, at
from monarch.rdma.memory.region import FREED_MEMORY
from monarch.rdma.memory.registry import Registration, registry
from monarch.rdma.ways.backend import WordChange
from monarch.rdma.ways.own_process import exchange
from monarch.rdma.ways.streams import (
    Ticket,
    check_reader,
    discard,
    end_with_its_host,
    receive_exactly,
    receive_number,
    receive_runs,
    send_runs,
)
from monarch.runtime.held import own_ports

REQUEST = struct.Struct("=B7xQQQQQQ")
"""The kind, the slot, the key, the first byte and the byte behind the last, two operands."""

RESPONSE = struct.Struct("=B7xQQQ")
"""``DONE`` or ``GONE``, the writes begun and ended, and a value."""

RANGE = struct.Struct("=QQ")
"""A range, as offset and length: a request for ``RANGES`` has their number as its ``stop``."""

READ, WRITE, ADD, SWAP, RANGES = range(1, 6)
DONE, GONE = range(2)

_HANDSHAKE_SECONDS = 10.0
_TICKET_SECONDS = 60.0
_LOCK_SECONDS = 30.0
_MOST_TICKETS = 4096
_MOST_STRANGERS = 64
"""How many connections may be open that have not shown a ticket yet. Another one closes the
oldest: whoever only connects keeps nobody out, and few threads busy."""
_MOST_RANGES = 2**20
_log = logging.getLogger("monarch.rdma")


class StreamServer:
    """Listens for readers of this process's memory. A reader must first send the number of a
    ticket."""

    def __init__(self, host: str, *, encrypted: bool) -> None:
        """Listen at ``host``, on a free port. Raises ``OSError`` if that fails."""
        self._encrypted = encrypted
        try:
            self._listener = socket.create_server((host, 0), backlog=256)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            # Another machine's name for this one may not be an address of this one.
            self._listener = socket.create_server(("0.0.0.0", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        own_ports.add(self.port)
        #: The tickets that nobody has shown yet, by number, each with the time at which it expires.
        self._tickets: dict[bytes, tuple[Ticket, float]] = {}
        #: All connections; of an encrypted one also the socket beneath TLS.
        self._open: set[socket.socket] = set()
        #: The connections that have not shown a ticket yet, the oldest first.
        self._strangers: dict[socket.socket, None] = {}
        self._is_closed = False
        #: Accepts connections.
        self._thread = threading.Thread(target=self._accept, name="monarch-rdma", daemon=True)
        self._thread.start()

    def issue(self) -> Ticket:
        """Return a ticket for one connection, which expires soon."""
        now = time.monotonic()
        if len(self._tickets) >= _MOST_TICKETS:
            expired = [n for n, (_, until) in self._tickets.copy().items() if until < now]
            for number in expired:
                self._tickets.pop(number, None)
        ticket = Ticket.new()
        self._tickets[ticket.number] = ticket, now + _TICKET_SECONDS
        return ticket

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(0.05)  # No descriptor left: another connection may end.
                continue
            if self._is_closed:
                sock.close()
                return
            self._open.add(sock)
            self._strangers[sock] = None
            for oldest in list(self._strangers)[:-_MOST_STRANGERS]:
                self._strangers.pop(oldest, None)
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            thread = threading.Thread(
                target=self._serve, args=(sock,), name="monarch-rdma", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # No thread is left: another connection may end.
                self._forget(sock)
                sock.close()

    def _serve(self, raw: socket.socket) -> None:
        sock = raw
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(_HANDSHAKE_SECONDS)
            number = receive_number(sock)
            ticket, until = self._tickets.pop(number, (None, 0.0))
            if ticket is None or until < time.monotonic():
                return
            sock = check_reader(sock, ticket, encrypted=self._encrypted)
            self._forget(raw)
            self._open.add(sock)  # TLS has a socket of its own.
            sock.settimeout(None)
            # Otherwise a link that is cut during a write would leave the write begun for ever.
            end_with_its_host(sock, settings().heartbeat_timeout_seconds)
            while True:
                self._handle(sock, receive_exactly(sock, REQUEST.size))
        except (OSError, ValueError):
            pass  # It has gone, or is none of ours.
        except Exception:
            _log.exception("a data connection broke")
        finally:
            for end in (sock, raw):
                self._forget(end)
                with contextlib.suppress(OSError):
                    end.close()

    def _forget(self, sock: socket.socket) -> None:
        self._open.discard(sock)
        self._strangers.pop(sock, None)

    def _handle(self, sock: socket.socket, request: bytes) -> None:
        kind, slot, key, start, stop, first, second = REQUEST.unpack(request)
        ranges: list[Run] = []
        if kind == RANGES:
            if stop > _MOST_RANGES:
                raise ValueError("too many ranges")
            ranges = list(RANGE.iter_unpack(receive_exactly(sock, stop * RANGE.size)))
            start, stop = 0, max((offset + size for offset, size in ranges), default=0)
        try:
            registration, memory = _find(slot, key, start, stop)
        except RemoteMemoryError as error:
            if kind == WRITE:
                discard(sock, stop - start)
            _refuse(sock, error.reason)
            return
        if kind == RANGES:
            if registration.device == "cpu":
                _send(sock, registration, list(at(registration.address, ranges)))
            else:
                part = registered_part(registration, memory, ranges)
                with staged(part, is_read=True, is_written=False) as runs:
                    _send(sock, registration, runs)
        elif kind == READ:
            with on_host(registration, memory, start, stop, is_read=True, is_written=False) as runs:
                _send(sock, registration, runs)
        elif kind == WRITE:
            deadline = time.monotonic() + _LOCK_SECONDS
            with (
                registry().table.writing(slot, deadline),
                on_host(registration, memory, start, stop, is_read=False, is_written=True) as runs,
            ):
                receive_runs(sock, runs)
            sock.sendall(RESPONSE.pack(DONE, 0, 0, 0))
        elif kind in (ADD, SWAP) and stop == start + 8:
            change = WordChange(first) if kind == ADD else WordChange(second, first)
            old = exchange(registration, start, change, time.monotonic() + _LOCK_SECONDS)
            sock.sendall(RESPONSE.pack(DONE, 0, 0, old))
        else:
            raise ValueError("no such request")

    def close(self) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(1.0)


def _find(slot: int, key: int, start: int, stop: int) -> tuple[Registration, object]:
    """Return the registration, and an object that keeps its memory in place.

    Raises ``RemoteMemoryError`` if the registration has ended, and ``ValueError`` for a range that
    is not within it.
    """
    registration = registry().find_entry(slot, key)
    memory = registration.life.hold()
    if memory is None:
        raise RemoteMemoryError("", "", FREED_MEMORY)
    if not 0 <= start <= stop <= registration.layout.nbytes:
        raise ValueError("beyond its end")
    return registration, memory


def _refuse(sock: socket.socket, why: str) -> None:
    text = why.encode()
    sock.sendall(RESPONSE.pack(GONE, 0, 0, len(text)) + text)


def _send(sock: socket.socket, registration: Registration, runs: Sequence[Run]) -> None:
    """Send the table entry, then the runs of host memory, then the table entry again.

    The reader compares the two entries to learn of writes.
    """
    table, slot = registry().table, registration.slot
    before = table.read(slot)
    sock.sendall(RESPONSE.pack(DONE, before.begun, before.ended, 0))
    send_runs(sock, runs)
    try:
        registry().find_entry(slot, registration.key)
        after = table.read(slot)
    except RemoteMemoryError as error:
        _refuse(sock, error.reason)
        return
    sock.sendall(RESPONSE.pack(DONE, after.begun, after.ended, 0))
