"""Locks on single bytes of a file, which the kernel releases if their holder dies.

They belong to the open file (OFD locks): two descriptors from separate calls of ``open`` exclude
each other, also within one process.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time

SHARED, ALONE = fcntl.F_RDLCK, fcntl.F_WRLCK

_FLOCK = struct.Struct("@hhqqi0q")
_PAUSE_SECONDS = 0.0005
_LONGEST_PAUSE_SECONDS = 0.02


def lock(fd: int, place: int, kind: int, deadline: float) -> None:
    """Lock the byte, ``SHARED`` with others or ``ALONE``, and wait for it if needed.

    Raises ``TimeoutError`` at the deadline, a time of ``time.monotonic()``.
    """
    pause = _PAUSE_SECONDS
    while not try_lock(fd, place, kind):
        if time.monotonic() > deadline:
            raise TimeoutError(
                "somebody holds the memory for longer than that: try again, or give a longer "
                "timeout="
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def try_lock(fd: int, place: int, kind: int) -> bool:
    """Lock the byte if no waiting is needed; return whether it is locked."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _packed(kind, place))
    except (BlockingIOError, PermissionError):
        return False
    return True


def unlock(fd: int, place: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _packed(fcntl.F_UNLCK, place))


def is_locked_by_others(fd: int, place: int) -> bool:
    """Whether the byte is locked through another descriptor, in either way."""
    found: bytes = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _packed(fcntl.F_WRLCK, place))
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def _packed(kind: int, place: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0)
