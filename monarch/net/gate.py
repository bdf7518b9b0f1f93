"""Admission over TCP: a peer needs the job's secret.

A listener uses CURVE. A stranger that does not know its public key (which is derived from the
secret and never sent) fails in ZeroMQ's own thread, before a byte of its messages reaches Python. A
peer that knows it must also have the connectors' key, which ZeroMQ checks by asking here (ZAP, RFC
27). A rejected peer is logged once for each kind, by address. A member of the job that is killed
during the handshake looks the same; so once peers were admitted, a peer is logged only if it tries
again a second later.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import itertools
import logging
import os
import resource
import socket as sockets
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import zmq
from zmq.utils import z85

from monarch.net.loop import Loop
from monarch.net.rare_log import RareLog
from monarch.wire.keys import JobKeys

_BACKLOG = 1024
_MAX_BATCH = 64
_DOMAIN = b"monarch"
_ZAP_URL = "inproc://zeromq.zap.01"
# Not the events of failed handshakes: when these are listened to, ZeroMQ (4.3.5) loses the
# error's number on the way, and keeps the bad connection.
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_EVENT = struct.Struct("=Hi")
# The bytes of both sides before the handshake; the kernel counts the connection itself as a byte.
_GREETING_BYTES = 64 + 1
_BYTES_ACKED = struct.Struct("=120xQ")  # in Linux's tcp_info
_log = logging.getLogger("monarch.net")


_adopted: dict[str, int] = {}


def adopt(url: str, fd: int) -> None:
    """Have the next ``bind`` to ``url`` use ``fd``, a socket that already listens there."""
    _adopted[url] = fd


class GateLimits(NamedTuple):
    """Limits on peers that have not finished their handshake.

    ``handshake_ms``: how long a handshake may take. ``max_knocking``: how many such peers may be
    connected. ``seconds_to_accuse``: for so long after a first failed handshake, a gate that has
    let members in logs nothing, because the peer may be a member that was killed.
    """

    handshake_ms: int = 5_000
    max_knocking: int = 128
    seconds_to_accuse: float = 1.0


class Gate:
    """Guards the TCP listeners of one ZeroMQ context. Call all methods but ``bind`` on the I/O
    loop."""

    def __init__(
        self, loop: Loop, context: zmq.Context[zmq.Socket[bytes]], limits: GateLimits
    ) -> None:
        self._limits = limits
        self._loop = loop
        self._context = context
        self._rare = RareLog(_log)
        self._allowed: set[bytes] = set()
        self._answerer: zmq.Socket[bytes] | None = None
        self._watched: list[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]] = []
        self._numbers = itertools.count()

    def bind(self, listener: zmq.Socket[bytes], url: str, keys: JobKeys | None) -> None:
        """Bind to a TCP URL, and admit only peers with ``keys``. If that is ``None``, admit all,
        and only limit their handshakes."""
        listener.setsockopt(zmq.HANDSHAKE_IVL, self._limits.handshake_ms)
        listener.setsockopt(zmq.BACKLOG, _BACKLOG)
        if keys is not None:
            self._allowed.add(keys.connector.public)
            self._loop.run_on_loop(self._answer_for_strangers)
            listener.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
            listener.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            listener.setsockopt(zmq.CURVE_SERVER, 1)
            listener.setsockopt(zmq.CURVE_PUBLICKEY, keys.listener.public)
            listener.setsockopt(zmq.CURVE_SECRETKEY, keys.listener.private)
        fd = _adopted.pop(url, None)
        if fd is not None:
            listener.setsockopt(zmq.USE_FD, fd)
        listener.bind(_numeric(url))
        bound: bytes = listener.getsockopt(zmq.LAST_ENDPOINT)  # type: ignore[assignment]
        self._loop.run_on_loop(lambda: self._watch(listener, bound.rstrip(b"\0").decode()))

    def _answer_for_strangers(self) -> None:
        if self._answerer is None:
            self._answerer = self._context.socket(zmq.REP)
            self._answerer.setsockopt(zmq.LINGER, 0)
            self._answerer.bind(_ZAP_URL)
            self._loop.add_reader(_fd(self._answerer), self._judge)
            self._judge()

    def _judge(self) -> None:
        # Until there is no request left: the descriptor reports only changes.
        while self._answerer is not None:
            try:
                request = self._answerer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._answerer.send_multipart(self._verdict(request))

    def _verdict(self, request: Sequence[bytes]) -> list[bytes]:
        version, number, domain, address, _, mechanism, *credentials = request
        is_known = version == b"1.0" and domain == _DOMAIN and mechanism == b"CURVE"
        if is_known and len(credentials) == 1 and self._is_allowed(credentials[0]):
            return [version, number, b"200", b"OK", b"", b""]
        self._rare.warning(
            "key", "turned away %s: its key is not of this job", address.decode("ascii", "replace")
        )
        return [version, number, b"400", b"not of this job", b"", b""]

    def _is_allowed(self, key: bytes) -> bool:
        # In constant time: how long it takes tells nothing about the key.
        return any(hmac.compare_digest(z85.encode(key), allowed) for allowed in self._allowed)

    def _watch(self, listener: zmq.Socket[bytes], url: str) -> None:
        """Log the peers that ZeroMQ rejects before Python sees anything of them."""
        name = f"inproc://watch-{next(self._numbers)}"
        listener.monitor(name, _EVENTS)
        events = self._context.socket(zmq.PAIR)
        events.setsockopt(zmq.LINGER, 0)
        # ZeroMQ's own thread would wait for room, and all messages with it.
        events.setsockopt(zmq.RCVHWM, 0)
        events.connect(name)
        self._watched.append((listener, events))
        watcher = _ListenerWatch(self._loop, events, url, self._rare, self._limits)
        self._loop.add_reader(_fd(events), watcher.read)
        watcher.read()

    def close(self) -> None:
        """Close the gate's sockets. Call it on the loop, or once the loop has ended, before the
        listeners are closed."""
        for listener, events in self._watched:
            listener.disable_monitor()
            self._loop.remove_reader(_fd(events))
            events.close(0)
        self._watched.clear()
        if self._answerer is not None:
            self._loop.remove_reader(_fd(self._answerer))
            self._answerer.close(0)
            self._answerer = None


class _ListenerWatch:
    """Reads the socket events of one listener."""

    def __init__(
        self, loop: Loop, events: zmq.Socket[bytes], url: str, log: RareLog, limits: GateLimits
    ) -> None:
        self._loop = loop
        self._events = events
        self._url = url
        self._rare = log
        self._limits = limits
        self._knocking: dict[int, tuple[str, int]] = {}
        self._lets_peers_in = False
        self._first_failure: float | None = None  # Of those since a peer was let in.

    def read(self) -> None:
        for _ in range(_MAX_BATCH):
            if self._events.closed:
                return
            try:
                message = self._events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(*_EVENT.unpack(message[0]))
        self._loop.call_soon(self.read)

    def _take(self, event: int, value: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self._knocking.pop(value, None)
            self._knocking[value] = _caller(value)
            # Each takes a descriptor.
            num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if len(self._knocking) > min(self._limits.max_knocking, num_files // 8):
                self._send_away()
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            # ZeroMQ does not say which peer: better to miss a stranger than to accuse a member.
            self._knocking.clear()
            self._lets_peers_in, self._first_failure = True, None
        elif value in self._knocking:
            address, _ = self._knocking.pop(value)
            if self._may_be_a_peer_that_was_killed():
                return
            self._rare.warning(
                self._url,
                "turned away %s, which came to %s and did not show that it belongs to this job",
                address,
                self._url,
            )

    def _may_be_a_peer_that_was_killed(self) -> bool:
        now = time.monotonic()
        if self._first_failure is None:
            self._first_failure = now
        return self._lets_peers_in and now - self._first_failure < self._limits.seconds_to_accuse

    def _send_away(self) -> None:
        """Hang up on the peer that has waited longest before its handshake, because too many wait.

        A real peer connects again.
        """
        while self._knocking:
            number = next(iter(self._knocking))
            address, port = self._knocking.pop(number)
            if _hang_up(number, address, port):
                self._rare.warning(
                    ("many", self._url),
                    "hung up on %s: too many at %s do not show that they belong to this job",
                    address,
                    self._url,
                )
                return


def _fd(socket: zmq.Socket[bytes]) -> int:
    number: int = socket.getsockopt(zmq.FD)  # type: ignore[assignment]
    return number


def _caller(fd: int) -> tuple[str, int]:
    """Return the address and port at the other end of a ZeroMQ socket; ("somebody", 0) if they are
    not known."""
    try:
        borrowed = sockets.socket(fileno=fd)
    except OSError:
        return "somebody", 0
    try:
        peer = borrowed.getpeername()
        # The number may be of another socket by now: a local one has a path for an address.
        return (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else ("somebody", 0)
    except OSError:
        return "somebody", 0
    finally:
        borrowed.detach()


def _hang_up(fd: int, address: str, port: int) -> bool:
    """End a connection of ZeroMQ's, if the descriptor still belongs to it and the handshake is not
    finished; return whether it was ended."""
    # The number may be of another connection at any moment; that of a copy stays.
    with contextlib.suppress(OSError), sockets.socket(fileno=os.dup(fd)) as held:
        if held.getpeername()[:2] != (address, port):
            return False
        info = held.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _BYTES_ACKED.size)
        if _BYTES_ACKED.unpack(info)[0] <= _GREETING_BYTES:
            held.shutdown(sockets.SHUT_RDWR)
            return True
    return False


def _numeric(url: str) -> str:
    """Return a TCP URL with its host name resolved: ZeroMQ binds to addresses only."""
    parts = urlsplit(url)
    return f"tcp://{sockets.gethostbyname(parts.hostname or '')}:{parts.port}"


def is_loopback(url: str) -> bool:
    """Return whether only this machine can reach a TCP URL."""
    try:
        address = urlsplit(_numeric(url)).hostname or ""
        return ipaddress.ip_address(address).is_loopback
    except (OSError, ValueError):
        return False
