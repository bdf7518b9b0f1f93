"""The reader's end of data sockets: the backend for processes that no other backend reaches."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence

from monarch.config import settings
from monarch.errors import MonarchError
from monarch.rdma.memory.layout import Run
from monarch.rdma.memory.region import Part, Ranges, RemoteRegion
from monarch.rdma.memory.table import LIVE, TableEntry
from monarch.rdma.ways.asking import response_of
from monarch.rdma.ways.backend import BackendUnavailable, Entries, WordChange
from monarch.rdma.ways.streams import (
    Ticket,
    prove_to_owner,
    receive_exactly,
    receive_runs,
    send_runs,
    set_time,
)
from monarch.rdma.ways.tcp_server import (
    ADD,
    DONE,
    RANGE,
    RANGES,
    READ,
    REQUEST,
    RESPONSE,
    SWAP,
    WRITE,
)
from monarch.runtime import process
from monarch.runtime.links.network import Gone
from monarch.wire.address import Uid
from monarch.wire.message import AskMemory


class Tcp:
    """The backend over TCP: it opens streams to owners on demand, and keeps them for later
    transfers."""

    name = "tcp"
    news_seconds = 1.0
    """How long a broken connection waits for the word that its process has died."""

    def __init__(self) -> None:
        #: Streams that no transfer uses, by owner.
        self._idle: dict[Uid, list[socket.socket]] = {}
        #: Streams that a transfer uses now, by owner.
        self._busy: dict[Uid, set[socket.socket]] = {}
        self._lock = threading.Lock()
        self._someone_gone = threading.Condition(self._lock)

    def read(self, part: Part | Ranges, into: Sequence[Run], deadline: float) -> Entries:
        with self._stream(part.region, deadline) as sock:
            if isinstance(part, Ranges):
                _ask_ranges(sock, part)
            else:
                _ask(sock, READ, part)
            before, _ = _response(sock, part.region)
            receive_runs(sock, into)
            after, _ = _response(sock, part.region)
            return before, after

    def write(self, part: Part, source: Sequence[Run], deadline: float) -> None:
        with self._stream(part.region, deadline) as sock:
            _ask(sock, WRITE, part)
            send_runs(sock, source)
            _response(sock, part.region)

    def exchange(
        self, region: RemoteRegion, offset: int, change: WordChange, deadline: float
    ) -> int:
        word = Part(region, offset, offset + 8)
        with self._stream(region, deadline) as sock:
            if change.expected is None:
                _ask(sock, ADD, word, change.operand)
            else:
                _ask(sock, SWAP, word, change.expected, change.operand)
            _, old = _response(sock, region)
            return old

    @contextlib.contextmanager
    def _stream(self, region: RemoteRegion, deadline: float) -> Iterator[socket.socket]:
        """Yield a stream to the owner that nobody else uses. It is kept only if no error was
        raised."""
        owner = region.owner.uid
        with self._lock:
            idle = self._idle.get(owner)
            sock = idle.pop() if idle else None
        if sock is None:
            sock = self._connect(region, deadline)
        with self._lock:
            self._busy.setdefault(owner, set()).add(sock)
        is_whole = False
        try:
            set_time(sock, deadline)
            yield sock
            is_whole = True
        except TimeoutError:
            raise TimeoutError(
                f"{region} has not answered in time: its host is busy or cut off. Try again, or "
                "give a longer timeout="
            ) from None
        except OSError as error:
            self._check_lives(region, deadline)
            raise region.error(
                f"the connection with its process broke: {error}. Try again; what was written may "
                "be there in part"
            ) from None
        except MonarchError:
            is_whole = True  # The owner has said so, and nothing else is on the way.
            raise
        finally:
            with self._lock:
                busy = self._busy.get(owner, set())
                is_known = sock in busy
                busy.discard(sock)
                idle = self._idle.setdefault(owner, [])
                is_kept = is_whole and is_known and len(idle) < settings().rdma_tcp_streams
                if is_kept:
                    idle.append(sock)
            if not is_kept:
                sock.close()

    def _connect(self, region: RemoteRegion, deadline: float) -> socket.socket:
        response = response_of(region, AskMemory("stream", {}), deadline)
        if response.error:
            raise BackendUnavailable(response.error)
        body = response.answer
        ticket = Ticket(body["number"], body["secret"])
        host, port = body["host"], body["port"]
        try:
            seconds = min(max(0.01, deadline - time.monotonic()), 10.0)
            sock = socket.create_connection((host, port), timeout=seconds)
        except OSError as error:
            self._check_lives(region, deadline)
            raise BackendUnavailable(f"no connection to {host}:{port}: {error}") from None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            set_time(sock, deadline)
            return prove_to_owner(sock, ticket, encrypted=body["encrypted"])
        except OSError as error:
            sock.close()
            self._check_lives(region, deadline)
            raise BackendUnavailable(f"{host}:{port} turned us away: {error}") from None

    def _check_lives(self, region: RemoteRegion, deadline: float) -> None:
        """Raise ``RemoteMemoryError`` if the owner has died.

        A dying process's sockets close before its death is reported: so this waits a moment for the
        report.
        """
        node, uid = process.current().node, region.owner.uid
        seconds = min(max(0.0, deadline - time.monotonic()), self.news_seconds)
        with self._someone_gone:
            self._someone_gone.wait_for(lambda: node.failure_of(uid) is not None, seconds)
        failure = node.failure_of(uid)
        if failure is not None:
            raise region.orphaned(f"its process is gone: {failure.reason}")

    def forget(self, uid: Uid, how: Gone) -> None:
        """Close the streams to a process that is gone, so that no transfer waits for it."""
        with self._lock:
            idle, busy = self._idle.pop(uid, []), self._busy.pop(uid, set())
            self._someone_gone.notify_all()
        for sock in busy:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for sock in idle:
            sock.close()

    def close(self) -> None:
        for uid in {*self._idle, *self._busy}:
            self.forget(uid, Gone.LEFT)


def _ask(sock: socket.socket, kind: int, part: Part, first: int = 0, second: int = 0) -> None:
    region = part.region
    sock.sendall(REQUEST.pack(kind, region.slot, region.key, part.start, part.stop, first, second))


def _ask_ranges(sock: socket.socket, part: Ranges) -> None:
    region = part.region
    head = REQUEST.pack(RANGES, region.slot, region.key, 0, len(part.ranges), 0, 0)
    sock.sendall(head + b"".join(RANGE.pack(*run) for run in part.ranges))


def _response(sock: socket.socket, region: RemoteRegion) -> tuple[TableEntry, int]:
    """Return the table entry and the value of an owner's response.

    Raises ``RemoteMemoryError`` if the owner refused.
    """
    status, begun, ended, value = RESPONSE.unpack(receive_exactly(sock, RESPONSE.size))
    if status != DONE:
        raise region.error(receive_exactly(sock, value).decode(errors="replace"))
    return TableEntry(region.key, LIVE, begun, ended), value
