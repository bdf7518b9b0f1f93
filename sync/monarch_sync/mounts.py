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
_PLACE = 4
_PIECE = 1 << 16


class _MountTable:
    """All mounts that this process sees. The kernel takes 50 us or more to list them, so the list
    is read again only when an open file reports that mounts have changed."""

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()  # the first that hears of a change must have read it
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._changes = select.poll()
        self._changes.register(self._file, select.POLLPRI | select.POLLERR)
        self._inside: dict[str, set[str]] = {}
        self._places = self._read()

    def inside(self, folder: str) -> set[str]:
        with self._lock:
            if self._changes.poll(0):
                self._inside.clear()
                self._places = self._read()
            found = self._inside.get(folder)
            if found is None:
                above = os.fsencode(os.path.realpath(folder)).rstrip(b"/") + b"/"
                inner = (place[len(above) :] for place in self._places if place.startswith(above))
                found = self._inside[folder] = set(map(os.fsdecode, inner))
            return found

    def _read(self) -> list[bytes]:
        table = b""
        while piece := os.pread(self._file, _PIECE, len(table)):
            table += piece
        places = (line.split(b" ")[_PLACE] for line in table.splitlines())
        return [_ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), place) for place in places]


@functools.lru_cache(maxsize=1)
def _table_of(pid: int, path: str) -> _MountTable:
    """Return the table that a process opened. A forked child must not use its parent's: they would
    take the reports of changes from each other."""
    return _MountTable(path)


def mounted_inside(folder: str, table: str = _TABLE) -> set[str]:
    """Return the mount points inside a folder, relative to it; none if the system does not list
    mounts."""
    try:
        return _table_of(os.getpid(), table).inside(folder)
    except OSError:
        return set()
