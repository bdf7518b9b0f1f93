"""Locks on single bytes of a file, which the kernel releases if their holder dies.

They belong to the open file (OFD locks): two descriptors from separate calls of ``open`` exclude
each other, also within one process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Iterator

SHARED, ALONE = fcntl.F_RDLCK, fcntl.F_WRLCK

_FLOCK = struct.Struct("@hhqqi0q")
_PAUSE_SECONDS = 0.0005
_LONGEST_PAUSE_SECONDS = 0.02


def lock(fd: int, byte: int, kind: int, deadline: float) -> None:
    """Wait until the byte of the file can be locked, and lock it.

    ``kind`` is ``ALONE`` or ``SHARED``; several may have a shared lock at a time. Raises
    ``TimeoutError`` at the deadline, a time of ``time.monotonic()``.
    """
    pause = _PAUSE_SECONDS
    while not try_lock(fd, byte, kind):
        if time.monotonic() > deadline:
            raise TimeoutError(
                "somebody holds the memory for longer than that: try again, or give a longer "
                "timeout="
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


@contextlib.contextmanager
def locked(fd: int, byte: int, kind: int, deadline: float) -> Iterator[None]:
    """Hold the lock of the byte during the ``with`` block.

    It waits as ``lock`` does, and raises ``TimeoutError`` at the deadline.
    """
    lock(fd, byte, kind, deadline)
    try:
        yield
    finally:
        unlock(fd, byte)


def try_lock(fd: int, byte: int, kind: int) -> bool:
    """Lock the byte if nobody else holds it; return whether it is locked."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _packed(kind, byte))
    except (BlockingIOError, PermissionError):
        return False
    return True


def unlock(fd: int, byte: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _packed(fcntl.F_UNLCK, byte))


def is_locked_by_others(fd: int, byte: int) -> bool:
    """Whether the byte is locked through another descriptor, ``SHARED`` or ``ALONE``."""
    conflict: bytes = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _packed(fcntl.F_WRLCK, byte))
    return bool(_FLOCK.unpack(conflict)[0] != fcntl.F_UNLCK)


def _packed(kind: int, byte: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0)
