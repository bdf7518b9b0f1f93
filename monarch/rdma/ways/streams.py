"""Data sockets: how the two ends authenticate, and transfers between a socket and memory.

The connecting side has a *ticket*, which it got over the job's encrypted channel: a number, and a
secret that is valid for one connection. Both sides prove that they know the secret, by an HMAC of a
challenge. Over TLS the challenge includes the channel binding (RFC 5929), which prevents a man in
the middle.
"""

from __future__ import annotations

import ctypes
import functools
import hmac
import os
import secrets
import socket
import ssl
import time
from collections.abc import Iterable
from typing import NamedTuple

from monarch.rdma.memory.layout import Run, batches

_DIRECT_BYTES = 64 * 1024
_STAGED_BYTES = 4 * 2**20
_PIECE_BYTES = 8 * 2**20
_PROOF_BYTES = 32
_NUMBER_BYTES = 8
_CIPHER = "ADH-AES256-GCM-SHA384:@SECLEVEL=0"


class Ticket(NamedTuple):
    """The number and secret that are valid for one connection."""

    number: bytes
    secret: bytes

    @classmethod
    def new(cls) -> Ticket:
        return cls(secrets.token_bytes(_NUMBER_BYTES), secrets.token_bytes(_PROOF_BYTES))


def prove_to_owner(sock: socket.socket, ticket: Ticket, *, encrypted: bool) -> socket.socket:
    """Authenticate to the owner with the ticket; return the socket, wrapped in TLS if
    ``encrypted``.

    Raises ``OSError`` if the other end does not know the ticket.
    """
    sock.sendall(ticket.number)
    challenge = b""
    if encrypted:
        sock = _tls(is_server=False).wrap_socket(sock)
        challenge = sock.get_channel_binding("tls-unique") or b""
    challenge += receive_exactly(sock, _PROOF_BYTES)
    sock.sendall(_proof(ticket, b"reader", challenge))
    if not hmac.compare_digest(
        receive_exactly(sock, _PROOF_BYTES), _proof(ticket, b"owner", challenge)
    ):
        raise ConnectionError("the process that listens there does not know the ticket")
    return sock


def receive_number(sock: socket.socket) -> bytes:
    """Read the number of a ticket, which a connecting reader sends first."""
    return receive_exactly(sock, _NUMBER_BYTES)


def check_reader(sock: socket.socket, ticket: Ticket, *, encrypted: bool) -> socket.socket:
    """Authenticate a reader that has sent a ticket's number; return the socket, in TLS if
    ``encrypted``.

    Raises ``OSError`` if the reader does not know the ticket's secret.
    """
    challenge = b""
    if encrypted:
        sock = _tls(is_server=True).wrap_socket(sock, server_side=True)
        challenge = sock.get_channel_binding("tls-unique") or b""
    fresh = secrets.token_bytes(_PROOF_BYTES)
    sock.sendall(fresh)
    challenge += fresh
    proof = receive_exactly(sock, _PROOF_BYTES)
    if not hmac.compare_digest(proof, _proof(ticket, b"reader", challenge)):
        raise ConnectionError("it does not know the secret of its ticket")
    sock.sendall(_proof(ticket, b"owner", challenge))
    return sock


def _proof(ticket: Ticket, who: bytes, challenge: bytes) -> bytes:
    return hmac.digest(ticket.secret, who + challenge, "sha256")


@functools.cache
def _tls(*, is_server: bool) -> ssl.SSLContext:
    """Return a TLS context without certificates: the ticket proves the identity of both sides."""
    kind = ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT
    context = ssl.SSLContext(kind)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    # 1.3 has no key exchange without certificates, nor a channel binding in Python.
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHER)
    if is_server:
        fd = os.memfd_create("monarch-rdma-dh", os.MFD_CLOEXEC)
        try:
            os.write(fd, _ffdhe2048())
            context.load_dh_params(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
    return context


def _ffdhe2048() -> bytes:
    """Return the group ffdhe2048 of RFC 7919, computed from its definition, as PEM."""
    import base64

    scale = 2**2100
    euler, term, count = 0, scale, 0
    while term:
        euler, count = euler + term, count + 1
        term //= count
    prime = 2**2048 - 2**1984 + ((euler * 2**1918) // scale + 560316) * 2**64 - 1
    body = b"\x02\x82\x01\x01\x00" + prime.to_bytes(256, "big") + b"\x02\x01\x02"
    der = b"\x30\x82" + len(body).to_bytes(2, "big") + body
    text = base64.encodebytes(der).decode()
    return f"-----BEGIN DH PARAMETERS-----\n{text}-----END DH PARAMETERS-----\n".encode()


def view_at(address: int, size: int) -> memoryview:
    """Return a view of memory by its address; the caller must keep the memory in place."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def receive_exactly(sock: socket.socket, size: int) -> bytes:
    """Read ``size`` bytes. Raises ``ConnectionError`` if the other end closes before."""
    data = bytearray(size)
    receive_into(sock, memoryview(data))
    return bytes(data)


def receive_into(sock: socket.socket, view: memoryview) -> None:
    """Fill ``view`` from the socket. Raises ``ConnectionError`` if the other end closes before."""
    while view.nbytes:
        num_received = sock.recv_into(view[:_PIECE_BYTES])
        if not num_received:
            raise ConnectionError("the other end has closed the connection")
        view = view[num_received:]


def send_runs(sock: socket.socket, runs: Iterable[Run]) -> None:
    """Send runs of memory without a copy; small runs are gathered into larger pieces first."""
    for batch, num_bytes in batches(runs, 1000, _STAGED_BYTES):
        if num_bytes // len(batch) >= _DIRECT_BYTES:
            for address, size in batch:
                sock.sendall(view_at(address, size))
            continue
        staged = bytearray(num_bytes)
        start = 0
        for address, size in batch:
            staged[start : start + size] = view_at(address, size)
            start += size
        sock.sendall(staged)


def receive_runs(sock: socket.socket, runs: Iterable[Run]) -> None:
    """Receive into runs of memory without a copy; small runs are received together first."""
    for batch, num_bytes in batches(runs, 1000, _STAGED_BYTES):
        if num_bytes // len(batch) >= _DIRECT_BYTES:
            for address, size in batch:
                receive_into(sock, view_at(address, size))
            continue
        staged = memoryview(bytearray(num_bytes))
        receive_into(sock, staged)
        start = 0
        for address, size in batch:
            view_at(address, size)[:] = staged[start : start + size]
            start += size


def discard(sock: socket.socket, num_bytes: int) -> None:
    """Read bytes from the socket and drop them."""
    waste = memoryview(bytearray(min(num_bytes, _STAGED_BYTES)))
    while num_bytes:
        part = min(num_bytes, waste.nbytes)
        receive_into(sock, waste[:part])
        num_bytes -= part


def end_with_its_host(sock: socket.socket, seconds: float) -> None:
    """Make the socket fail with ``OSError`` if the other host does not answer for ``seconds``.

    A host's kernel answers even while its programs hang.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    third = max(1, int(seconds / 3))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, third)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, third)
    # Also for unacknowledged data; for probes it replaces their number.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


def set_time(sock: socket.socket, deadline: float) -> None:
    """Set the socket's timeout to the time left. Raises ``TimeoutError`` if the deadline has
    passed."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("it takes longer than its timeout: give a longer one, timeout=seconds")
    sock.settimeout(seconds)
