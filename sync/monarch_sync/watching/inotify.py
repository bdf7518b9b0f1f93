"""Inotify: the kernel's events about watched folders, as they happen.

Bound by hand, because `watchfiles` does not report three facts: that the kernel's queue overflowed
and events are lost; the order of events, without which a cookie proves nothing; and the moment from
which a folder is watched. It also wakes up without sleeping in steps, so a save is seen in less
than a millisecond and an idle watcher costs nothing.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
from typing import NamedTuple

MODIFY = 0x2
ATTRIB = 0x4
CLOSE_WRITE = 0x8
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
MOVE_SELF = 0x800
UNMOUNT = 0x2000
OVERFLOW = 0x4000
IGNORED = 0x8000
IS_DIR = 0x40000000

_ONLY_DIR = 0x1000000
_DONT_FOLLOW = 0x2000000
_EXCLUDE_UNLINKED = 0x4000000
_FOLDER = (
    MODIFY | ATTRIB | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF
    | MOVE_SELF | _ONLY_DIR | _DONT_FOLLOW | _EXCLUDE_UNLINKED
)  # fmt: skip

_HEAD = struct.Struct("iIII")
_READ_BYTES = 1 << 18
_MAX_EVENT_BYTES = _HEAD.size + 256  # a name and the zero behind it


class InotifyEvent(NamedTuple):
    """One event of a watched folder. ``watch``: the number of the folder's watch; -1 if events were
    lost."""

    watch: int
    mask: int
    cookie: int
    name: str


def is_there() -> bool:
    """Return whether this system has inotify at all."""
    try:
        return hasattr(ctypes.CDLL(None), "inotify_init1")
    except (TypeError, OSError):
        return False


class Inotify:
    """One queue of inotify events. Raises ``OSError`` if the system has no inotify instance
    left."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._checked(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK), "")
        self._buffer = bytearray(_READ_BYTES)

    def watch(self, folder: str) -> int:
        """Watch a folder and the entries right inside it from here on; returns the watch's number.

        Raises ``OSError``: ENOSPC when the user has no watches left.
        """
        raw = os.fsencode(folder)
        return self._checked(self._libc.inotify_add_watch(self._fd, raw, _FOLDER), folder)

    def watch_file(self, path: str) -> int:
        """Watch the content of a file for writes from here on; returns the watch's number."""
        added = self._libc.inotify_add_watch(self._fd, os.fsencode(path), MODIFY)
        return self._checked(added, path)

    def unwatch(self, number: int) -> None:
        """Stop watching a folder; nothing happens if the folder is gone already."""
        self._libc.inotify_rm_watch(self._fd, number)

    def wait(self, seconds: float | None, waker: int = -1) -> bool:
        """Wait until there are events, for ``seconds`` at most; return whether there are any. A
        byte that arrives at the descriptor ``waker`` ends the wait early.
        """
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if waker >= 0:
            poll.register(waker, select.POLLIN)
        timeout = None if seconds is None else max(0.0, seconds * 1000)
        return any(fd == self._fd for fd, _ in poll.poll(timeout))

    def read(self) -> list[InotifyEvent]:
        """Return the waiting events, oldest first, without blocking."""
        events: list[InotifyEvent] = []
        raw, end = self._buffer, _READ_BYTES
        # While another event would have had room, there was none.
        while end > _READ_BYTES - _MAX_EVENT_BYTES:
            try:
                end = os.readv(self._fd, [raw])
            except BlockingIOError:
                break
            at = 0
            while at < end:
                number, mask, cookie, size = _HEAD.unpack_from(raw, at)
                at += _HEAD.size
                name = os.fsdecode(bytes(raw[at : at + size].rstrip(b"\0"))) if size else ""
                at += size
                events.append(InotifyEvent(number, mask, cookie, name))
        return events

    def close(self) -> None:
        """Release all watches. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _checked(self, result: int, path: str) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)
        return result
