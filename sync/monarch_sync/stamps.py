"""Stamps: which content a file has, read again only if the file may have changed.

A file is known by its inode, so a renamed folder costs no reading. As git does it, a file that was
changed as late as it was read is read again: another change might bear the same time.
"""

from __future__ import annotations

import os
import stat
import time
from typing import NamedTuple

from monarch_sync.digest import digest_stream

__all__ = ["Stamps", "digest_of"]

_TICK_NS = 20_000_000
_MAX_FILES = 500_000


class _Stamp(NamedTuple):
    size: int
    mtime_ns: int
    ctime_ns: int
    digest: bytes


class Stamps:
    """The digests of files, remembered while this process lives."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _Stamp] = {}

    def digest_of(self, path: str) -> bytes | None:
        """The digest of a regular file; None where there is none."""
        try:
            status = os.lstat(path)
        except OSError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        key = (status.st_dev, status.st_ino)
        known = self._known.get(key)
        times = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if known is not None and known[:3] == times:
            return known.digest
        now = time.time_ns()
        digest = digest_of(path)
        if digest is not None and max(status.st_mtime_ns, status.st_ctime_ns) + _TICK_NS < now:
            if len(self._known) >= _MAX_FILES:
                self._known.clear()
            self._known[key] = _Stamp(*times, digest)
        return digest


def digest_of(path: str) -> bytes | None:
    """The digest of a regular file, read; None where there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(fd, "rb", buffering=0) as file:
        try:
            return digest_stream(file)[0]
        except OSError:
            return None  # a folder
