"""Mounts: file systems that were mounted inside a folder.

A mounted file or folder (a secret, a configuration in a container) can be written to, but not
renamed, replaced or deleted, whatever its file system. And a disk that is mounted over a watched
folder hides it without an event.
"""

from __future__ import annotations

import functools
import os
import re
import select
import threading

_TABLE = "/proc/self/mountinfo"
_ESCAPED = re.compile(rb"\\([0-7]{3})")  # blanks and backslashes
_MOUNT_POINT = 4
_PIECE = 1 << 16


class _MountTable:
    """All mounts that this process sees. Listing them takes the kernel 50 us or more, so they are
    listed again only after the kernel has reported a change of them."""

    def __init__(self, path: str) -> None:
        # The kernel reports a change once: the thread that gets the report reads the list for all.
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._changes = select.poll()
        self._changes.register(self._file, select.POLLPRI | select.POLLERR)
        #: The mount points inside a folder, relative to it, by folder.
        self._inside: dict[str, set[str]] = {}
        self._mounts = self._read()

    def inside(self, folder: str) -> set[str]:
        """Return the mount points inside a folder, relative to it."""
        with self._lock:
            if self._changes.poll(0):
                self._inside.clear()
                self._mounts = self._read()
            mounts = self._inside.get(folder)
            if mounts is None:
                above = os.fsencode(os.path.realpath(folder)).rstrip(b"/") + b"/"
                inner = (mount[len(above) :] for mount in self._mounts if mount.startswith(above))
                mounts = self._inside[folder] = set(map(os.fsdecode, inner))
            return mounts

    def _read(self) -> list[bytes]:
        table = b""
        while piece := os.pread(self._file, _PIECE, len(table)):
            table += piece
        mounts = (line.split(b" ")[_MOUNT_POINT] for line in table.splitlines())
        return [_ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), mount) for mount in mounts]


@functools.lru_cache(maxsize=1)
def _table_of(pid: int, path: str) -> _MountTable:
    """Return the mount table that the process ``pid`` has opened, and open it at the first call.

    A forked child opens its own: with a shared table, a report of the kernel would reach only one
    of the two processes.
    """
    return _MountTable(path)


def mounted_inside(folder: str, table: str = _TABLE) -> set[str]:
    """Return the mount points inside a folder, relative to it; none if the system does not list
    mounts."""
    try:
        return _table_of(os.getpid(), table).inside(folder)
    except OSError:
        return set()
