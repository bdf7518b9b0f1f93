"""One end of a tunnel: many TCP connections over one stream of bytes that may break.

Both ends are alike. `gateway.py` sends the text of this file and of `resumed_stream.py` over a
login, so a gateway needs Python 3.8 and no package of ours: beside these files, only the standard
library is imported here. `far_end` runs in the login, and outlives it for a while.

When the stream breaks, the far end lives on for a while, and connections through the tunnel do not
notice. They are closed only if an end itself was replaced by a new one. Each connection has a
window, which limits the bytes that its receiver has not taken yet, so that a stalled connection
does not delay the others.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import sys
import threading
import time
from collections import deque
from typing import Any, Callable  # noqa: UP035 (Python 3.8)

from monarch.net.resumed_stream import CHUNK_BYTES, STEP_SECONDS, ResumedStream

_NUMBER = struct.Struct("!Q")
_OPEN, _OPENED, _DATA, _END, _ROOM, _LISTEN, _LISTENS, _BYE = range(1, 9)

_WINDOW_BYTES = 1 << 20

_KEEP_SECONDS = 60.0
"""How long the far end waits for a new stream."""


class _Stream:
    """One connection through the tunnel."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.socket: socket.socket | None = None
        self.is_connecting = False
        self.is_ending = False  # The other end has hung up: what has come is still handed on.
        self.credit = _WINDOW_BYTES
        self.taken = 0
        self.waiting: deque[bytes] = deque()
        self.on_outcome: Callable[[str], None] | None = None


class TunnelEnd:
    """One end of a tunnel. Call everything but ``post`` on the thread that calls ``step``.

    ``on_broken`` is called when the stream breaks. Connections that the other end was asked to
    accept lead to ``target``.
    """

    def __init__(self, *, first_stream: int, on_broken: Callable[[], None]) -> None:
        #: The number of the next stream. One end has the odd numbers, the other the even.
        self._next = first_stream
        self._selector = selectors.DefaultSelector()
        self._streams: dict[int, _Stream] = {}
        #: Listeners whose connections lead through the tunnel.
        self._ways: list[socket.socket] = []
        #: By stream, where the other end was asked to listen: the wish, the target, the outcome.
        self._listening: dict[int, tuple[bytes, tuple[str, int], Callable[[str], None]]] = {}
        self._stream = ResumedStream(self._selector, self._take, on_broken, self._begin_anew)
        self._send = self._stream.send
        #: Actions for this end's thread. Any thread appends, and then rings the bell.
        self._posted: deque[Callable[[], None]] = deque()
        self._bell, self._ringer = socket.socketpair()
        self._bell.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ, self._on_bell)
        #: Whether the other end will not come back.
        self.is_over = False

    def post(self, do: Callable[[], None]) -> None:
        """Have the end's own thread call ``do``. From any thread."""
        self._posted.append(do)
        with contextlib.suppress(OSError):
            self._ringer.send(b"!")

    def watch(self, source: socket.socket, act: Callable[[int], None]) -> None:
        """Call ``act`` in each step in which ``source`` can be read."""
        self._selector.register(source, selectors.EVENT_READ, act)

    def _on_bell(self, events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._bell.recv(4096)
        while self._posted:
            self._posted.popleft()()

    @property
    def is_attached(self) -> bool:
        return self._stream.is_attached

    @property
    def num_bytes(self) -> tuple[int, int]:
        """How many bytes were sent over the stream, and received."""
        return self._stream.bytes_out, self._stream.bytes_in

    def attach(self, pipe: socket.socket) -> None:
        """Use this connection as the stream from now on."""
        self._stream.attach(pipe)

    def step(self, seconds: float) -> None:
        """Wait for events, at most ``seconds``, and handle them."""
        for key, events in self._selector.select(min(seconds, STEP_SECONDS)):
            key.data(events)
        self._stream.look_after()

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        if kind == _OPEN:
            self._open(number, payload)
        elif kind == _LISTEN:
            self._listen(number, payload.decode())
        elif kind == _LISTENS and number in self._listening:
            self._listening[number][2](payload.decode())
        elif kind == _BYE:
            self.is_over = True
        elif kind in (_OPENED, _DATA, _END, _ROOM):
            stream = self._streams.get(number)
            if stream is not None:
                self._take_of(stream, kind, payload)

    def _take_of(self, stream: _Stream, kind: int, payload: bytes) -> None:
        if kind == _DATA:
            stream.waiting.append(payload)
            self._hand_on(stream)
        elif kind == _ROOM:
            stream.credit += _NUMBER.unpack(payload)[0]
            self._watch(stream)
        else:
            on_outcome, stream.on_outcome = stream.on_outcome, None
            if on_outcome is not None:
                on_outcome(payload.decode())
            if kind == _END:
                stream.is_ending = True
                self._hand_on(stream)

    def _begin_anew(self) -> None:
        """Close all connections, because the other end was replaced by a new one, which does not
        know them."""
        for stream in list(self._streams.values()):
            self._close(stream)
        for number, (wish, _, _) in self._listening.items():
            self._send(_LISTEN, number, wish)

    # Connections.

    def connect(
        self,
        connection: socket.socket | None,
        target: str,
        on_outcome: Callable[[str], None] | None = None,
    ) -> int:
        """Connect ``connection`` to ``target``, HOST:PORT, at the other end; return the stream's
        number.

        ``on_outcome`` is called with "" once it is connected, or with the reason why not.
        """
        number, self._next = self._next, self._next + 2
        stream = self._streams[number] = _Stream(number)
        stream.on_outcome = on_outcome
        if connection is not None:
            connection.setblocking(False)
            stream.socket = connection
        self._send(_OPEN, number, target.encode())
        self._watch(stream)
        return number

    def hang_up(self, number: int) -> None:
        stream = self._streams.get(number)
        if stream is not None:
            self._send(_END, number)
            self._close(stream)

    def add_way(self, listener: socket.socket, target: str) -> None:
        """Accept connections at ``listener``, and connect them to ``target`` at the other end."""

        def accept(events: int) -> None:
            with contextlib.suppress(OSError):
                self.connect(listener.accept()[0], target)

        listener.setblocking(False)
        self._ways.append(listener)
        self._selector.register(listener, selectors.EVENT_READ, accept)

    def listen(self, wish: str, target: tuple[str, int], on_outcome: Callable[[str], None]) -> None:
        """Have the other end listen at an address that ``wish``, HOST:PORT, can reach.

        Connections to it lead to ``target``, here. The outcome is ADDRESS:PORT, or an error that
        begins with "!".
        """
        number, self._next = self._next, self._next + 2
        self._listening[number] = wish.encode(), target, on_outcome
        self._send(_LISTEN, number, wish.encode())

    def _listen(self, number: int, wish: str) -> None:
        """Listen on behalf of the other end, and send it the address, or an error.

        ``wish`` is HOST:PORT, or HOST:PORT:BEFORE. The address is the one from which this machine
        reaches HOST, with the port BEFORE if that is free.
        """
        try:
            host, port, wanted_port = (wish + ":0").split(":")[:3]
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, int(port) or 9))  # Nothing is sent: it picks the way out.
                address = probe.getsockname()[0]
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address, int(wanted_port)))
            except OSError:
                listener.bind((address, 0))
            listener.listen(1024)
        except OSError as error:
            self._send(_LISTENS, number, f"!{error.strerror or error}".encode())
            return
        self.add_way(listener, f"#{number}")
        self._send(_LISTENS, number, f"{address}:{listener.getsockname()[1]}".encode())

    def _open(self, number: int, payload: bytes) -> None:
        stream = self._streams[number] = _Stream(number)
        text = payload.decode()
        try:
            if text.startswith("#"):
                address = self._listening[int(text[1:])][1]
            else:
                host, _, port = text.rpartition(":")
                address = (host, int(port))
            family, kind, _, _, where = socket.getaddrinfo(
                *address, socket.AF_INET, socket.SOCK_STREAM
            )[0]
            stream.socket = socket.socket(family, kind)
            stream.socket.setblocking(False)
            stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.is_connecting = True
            with contextlib.suppress(BlockingIOError):
                stream.socket.connect(where)
        except (OSError, KeyError) as error:
            self._fail(stream, str(getattr(error, "strerror", "") or error))
            return
        self._watch(stream)

    def _fail(self, stream: _Stream, why: str) -> None:
        self._send(_END, stream.number, why.encode())
        self._close(stream)

    def _watch(self, stream: _Stream) -> None:
        """Register this connection with the selector for the events that it waits for now."""
        if stream.socket is None:
            return
        wanted = 0
        if stream.is_connecting or stream.waiting:
            wanted |= selectors.EVENT_WRITE
        if not stream.is_connecting and not stream.is_ending and stream.credit > 0:
            wanted |= selectors.EVENT_READ
        try:
            registered = self._selector.get_key(stream.socket).events
        except KeyError:
            registered = 0

        def act(events: int) -> None:
            self._on_stream(stream, events)

        if not wanted and registered:
            self._selector.unregister(stream.socket)
        elif wanted and not registered:
            self._selector.register(stream.socket, wanted, act)
        elif wanted != registered:
            self._selector.modify(stream.socket, wanted, act)

    def _on_stream(self, stream: _Stream, events: int) -> None:
        if stream.socket is None:
            return
        if stream.is_connecting:
            error = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                self._fail(stream, os.strerror(error))
                return
            stream.is_connecting = False
            self._send(_OPENED, stream.number)
        if events & selectors.EVENT_WRITE:
            self._hand_on(stream)
        if events & selectors.EVENT_READ and stream.socket is not None:
            try:
                data = stream.socket.recv(min(CHUNK_BYTES, stream.credit))
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._send(_END, stream.number)
                self._close(stream)
                return
            stream.credit -= len(data)
            self._send(_DATA, stream.number, data)
        if stream.socket is not None:
            self._watch(stream)

    def _hand_on(self, stream: _Stream) -> None:
        """Write the waiting data to the connection, as much as it takes now."""
        if stream.is_connecting:
            return
        try:
            while stream.waiting and stream.socket is not None:
                data = stream.waiting[0]
                sent = stream.socket.send(data)
                stream.taken += sent
                if sent < len(data):
                    stream.waiting[0] = data[sent:]
                else:
                    stream.waiting.popleft()
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(stream, str(error.strerror or error))
            return
        if stream.taken >= _WINDOW_BYTES // 4:
            self._send(_ROOM, stream.number, _NUMBER.pack(stream.taken))
            stream.taken = 0
        if stream.is_ending and not stream.waiting:
            self._close(stream)
        else:
            self._watch(stream)

    def _close(self, stream: _Stream) -> None:
        self._streams.pop(stream.number, None)
        if stream.on_outcome is not None:
            on_outcome, stream.on_outcome = stream.on_outcome, None
            on_outcome("the tunnel has ended")
        if stream.socket is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(stream.socket)
            stream.socket.close()
            stream.socket = None

    def say_goodbye(self) -> None:
        """Tell the other end not to wait for another stream."""
        if self.is_attached:
            self._send(_BYE, 0)

    def close(self) -> None:
        for stream in list(self._streams.values()):
            self._close(stream)
        self._stream.detach()
        for listener in self._ways:
            listener.close()
        self._selector.close()
        self._bell.close()
        self._ringer.close()


def far_end(mark: str, session: str) -> None:
    """Connect standard input and output to the session's far end on this machine; start that if
    there is none."""
    try:
        joined = _joined(_folder(), session)
    except OSError as error:
        sys.stdout.write(mark + "!" + str(error) + "\n")
        sys.stdout.flush()
        return
    sys.stdout.write(mark + "ready\n")
    sys.stdout.flush()
    _splice(joined)


def _folder() -> str:
    base = os.environ.get("MONARCH_RUNTIME_DIR") or "/tmp"
    path = os.path.join(base, "gateway-%d" % os.getuid())  # noqa: UP031
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(path + " must belong to you and be closed to others")
    return path


def _joined(folder: str, session: str) -> socket.socket:
    path = os.path.join(folder, session[:12])
    joined = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(OSError):
        joined.connect(path)
        return joined
    with contextlib.suppress(OSError):
        os.unlink(path)
    door = socket.socket(socket.AF_UNIX)
    door.bind(path)
    door.listen(4)
    if os.fork() == 0:
        try:
            _live(door, path)
        finally:
            os._exit(0)
    door.close()
    joined.connect(path)
    return joined


def _live(door: socket.socket, path: str) -> None:
    """Run the far end, also after the login ends."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    since = [time.monotonic()]

    def broken() -> None:
        since[0] = time.monotonic()

    end = TunnelEnd(first_stream=2, on_broken=broken)

    def joined(events: int) -> None:
        end.attach(door.accept()[0])

    end.watch(door, joined)
    try:
        while not end.is_over:
            end.step(STEP_SECONDS)
            if not end.is_attached and time.monotonic() - since[0] > _KEEP_SECONDS:
                break
    finally:
        os.unlink(path)


def _splice(joined: socket.socket) -> None:
    """Copy standard input to the session's socket, and the socket's data to standard output."""

    def upwards() -> None:
        try:
            while True:
                data = os.read(0, CHUNK_BYTES)
                if not data:
                    break
                joined.sendall(data)
        except OSError:
            pass
        with contextlib.suppress(OSError):
            joined.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=upwards, daemon=True).start()
    try:
        while True:
            data = joined.recv(CHUNK_BYTES)
            if not data:
                break
            at: Any = memoryview(data)
            while at:
                at = at[os.write(1, at) :]
    except OSError:
        pass
    os._exit(0)
