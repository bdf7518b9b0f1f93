"""The owner's end of data sockets: moves bytes between them and registered memory.

Each connection has a thread, which ends when the other end closes. It never waits for the owner's
program: neither its actors nor its loops.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence

from monarch.config import settings
from monarch.errors import RemoteMemoryError
from monarch.rdma.memory import table as tables
from monarch.rdma.memory.device_memory import on_host, registered_part, staged
from monarch.rdma.memory.layout import Run
from monarch.rdma.memory.region import FREED_MEMORY
from monarch.rdma.memory.registry import Registration, registry
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
"""What to do, the table entry, its key, the first byte and the one behind the last, operands."""

RESPONSE = struct.Struct("=B7xQQQ")
"""How it went, writes begun and ended, a value."""

RANGE = struct.Struct("=QQ")
"""What follows a request for ``RANGES``, as many times as its last byte says."""

READ, WRITE, ADD, SWAP, RANGES = range(1, 6)
DONE, GONE = range(2)

_HANDSHAKE_SECONDS = 10.0
_TICKET_SECONDS = 60.0
_LOCK_SECONDS = 30.0
_MOST_TICKETS = 4096
_MOST_STRANGERS = 64
"""So many connections at once may still have to show a ticket, which takes milliseconds. Where
more come, the oldest goes: whoever only connects keeps nobody out, and few threads busy."""
_MOST_RANGES = 2**20
_log = logging.getLogger("monarch.rdma")


class StreamServer:
    """Listens for readers that have a ticket."""

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
        self._tickets: dict[bytes, tuple[Ticket, float]] = {}
        self._open: set[socket.socket] = set()
        self._strangers: dict[socket.socket, None] = {}
        self._is_closed = False
        self._thread = threading.Thread(target=self._accept, name="monarch-rdma", daemon=True)
        self._thread.start()

    def issue(self) -> Ticket:
        """Return a ticket for one connection, which expires soon."""
        now = time.monotonic()
        if len(self._tickets) >= _MOST_TICKETS:
            late = [n for n, (_, until) in self._tickets.copy().items() if until < now]
            for number in late:
                self._tickets.pop(number, None)
        ticket = Ticket.new()
        self._tickets[ticket.number] = ticket, now + _TICKET_SECONDS
        return ticket

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                if self.is_closed():
                    return
                time.sleep(0.05)  # No descriptor left: another connection may end.
                continue
            if self.is_closed():
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

    def is_closed(self) -> bool:
        return self._is_closed

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
            for one in (sock, raw):
                self._forget(one)
                with contextlib.suppress(OSError):
                    one.close()

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
            start, stop = 0, max((at + size for at, size in ranges), default=0)
        try:
            found, held = _find(slot, key, start, stop)
        except RemoteMemoryError as error:
            if kind == WRITE:
                discard(sock, stop - start)
            _refuse(sock, error.reason)
            return
        if kind == RANGES:
            if found.device == "cpu":
                _send(sock, found, [(found.address + at, size) for at, size in ranges])
            else:
                part = registered_part(found, held, ranges)
                with staged(part, is_read=True, is_written=False) as here:
                    _send(sock, found, here)
        elif kind == READ:
            _read(sock, found, held, start, stop)
        elif kind == WRITE:
            _write(sock, found, held, start, stop)
        elif kind in (ADD, SWAP) and stop == start + 8:
            old = _exchange(found, start, kind, first, second)
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

    Raises ``RemoteMemoryError`` if it has ended, ``ValueError`` for a range beyond its end.
    """
    found = registry().find_entry(slot, key)
    held = found.life.hold()
    if held is None:
        raise RemoteMemoryError("", "", FREED_MEMORY)
    if not 0 <= start <= stop <= found.layout.nbytes:
        raise ValueError("beyond its end")
    return found, held


def _refuse(sock: socket.socket, why: str) -> None:
    text = why.encode()
    sock.sendall(RESPONSE.pack(GONE, 0, 0, len(text)) + text)


def _read(sock: socket.socket, found: Registration, held: object, start: int, stop: int) -> None:
    with on_host(found, held, start, stop, is_read=True, is_written=False) as runs:
        _send(sock, found, runs)


def _send(sock: socket.socket, found: Registration, runs: Sequence[Run]) -> None:
    """Send runs of host memory, between the table entry as it was before and as it is after."""
    table = registry().table
    before = table.read(found.slot)
    sock.sendall(RESPONSE.pack(DONE, before.begun, before.ended, 0))
    send_runs(sock, runs)
    try:
        registry().find_entry(found.slot, found.key)
        after = table.read(found.slot)
    except RemoteMemoryError as error:
        _refuse(sock, error.reason)
        return
    sock.sendall(RESPONSE.pack(DONE, after.begun, after.ended, 0))


def _write(sock: socket.socket, found: Registration, held: object, start: int, stop: int) -> None:
    fd = registry().table.open()
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        with (
            tables.in_use(fd, found.slot, deadline),
            tables.changing(fd, found.slot, deadline),
            on_host(found, held, start, stop, is_read=False, is_written=True) as runs,
        ):
            receive_runs(sock, runs)
    finally:
        os.close(fd)
    sock.sendall(RESPONSE.pack(DONE, 0, 0, 0))


def _exchange(found: Registration, start: int, kind: int, first: int, second: int) -> int:
    deadline = time.monotonic() + _LOCK_SECONDS
    if kind == ADD:
        return exchange(found, start, lambda old: (old + first) % 2**64, deadline)
    return exchange(found, start, lambda old: second if old == first else None, deadline)
