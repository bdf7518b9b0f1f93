"""A console at a debug controller's port, which is open if ``MONARCH_DEBUG_SERVER_PORT`` is set.

Upstream's `monarch debug --host --port` does this with netcat. Our own console needs no port.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading

from monarch.errors import JobError

_CONNECT_SECONDS = 5.0
_MOST_BYTES = 64 * 1024


def attach_to_port(host: str, port: int) -> None:
    """Connect standard input and output with a debug controller, until it closes the connection.

    Raises ``JobError`` if no process listens.
    """
    try:
        connection = socket.create_connection((host, port), _CONNECT_SECONDS)
    except OSError as error:
        raise JobError(
            f"nobody listens at {host}:{port} ({error.strerror or error}): `monarch debug` opens "
            "held calls, and needs no port"
        ) from None
    with connection:
        connection.settimeout(None)
        threading.Thread(target=_pass_lines, args=(connection,), daemon=True).start()
        while data := _received(connection):
            sys.stdout.buffer.write(data)
            sys.stdout.flush()


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(_MOST_BYTES)
    except ConnectionError:
        return b""


def _pass_lines(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(sys.stdin.fileno(), _MOST_BYTES):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
