"""The far end of a tunnel. It runs in a login to the gateway, and outlives it for a while.

Its text is sent to the gateway after that of `tunnel.py`, and needs Python 3.8, too.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from typing import Any

from monarch.net.resumed_stream import CHUNK_BYTES, STEP_SECONDS
from monarch.net.tunnel import TunnelEnd

_KEEP_SECONDS = 60.0
"""How long it waits for a new stream."""


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
