"""Stamps: remember files' digests by their status, so that only changed files are read again.

A file is recognised by its inode, so a renamed folder costs no reading. As in git, a file that was
changed as late as it was read is read again: another change might have the same time. A file that
this process wrote, with a time of its choice, need not be read.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from monarch_sync.content.digest import digest_bytes, digest_stream

TICK_NS = 20_000_000
_MAX_FILES = 500_000
_SMALL_BYTES = 64 << 10

_Stamp = tuple[int, int, int, bytes]  # size, mtime_ns, ctime_ns, digest


class Stamps:
    """The digests of files, remembered while this process lives. ``tick_ns``: two changes
    within this time may give a file the same time."""

    def __init__(self, tick_ns: int = TICK_NS) -> None:
        self._tick_ns = tick_ns
        #: By device and inode.
        self._stamps: dict[tuple[int, int], _Stamp] = {}

    def digest_of(self, path: str, status: os.stat_result | None = None) -> bytes | None:
        """Return the digest of the regular file at a path; None if no regular file is there.
        ``status``: the file's status, if the caller has just read it.
        """
        if status is None:
            status = lstat(path)
        if status is None or not stat.S_ISREG(status.st_mode):
            return None
        stamp = self._stamps.get((status.st_dev, status.st_ino))
        if stamp is not None and stamp[:3] == _times(status):
            return stamp[3]
        read_ns = time.time_ns()
        digest = digest_of(path)
        changed_ns = max(status.st_mtime_ns, status.st_ctime_ns)
        if digest is not None and changed_ns + self._tick_ns < read_ns:
            self._put(status, digest)
        return digest

    def note(self, status: os.stat_result, digest: bytes, mtime_ns: int) -> None:
        """Remember the digest of a file that we wrote and gave the time ``mtime_ns``.

        Remember nothing if the file has another time by now (so another program changed it), or if
        a later change could get the same time.
        """
        is_ours = status.st_mtime_ns == mtime_ns
        if is_ours and abs(mtime_ns - status.st_ctime_ns) > self._tick_ns:
            self._put(status, digest)

    def _put(self, status: os.stat_result, digest: bytes) -> None:
        if len(self._stamps) >= _MAX_FILES:
            self._stamps.clear()
        self._stamps[status.st_dev, status.st_ino] = (*_times(status), digest)


def _times(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def lstat(path: str) -> os.stat_result | None:
    """Return the status of the entry at a path; None if nothing is there or the path cannot be
    reached."""
    try:
        return os.lstat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise


def identity_of(path: str, *, follow_links: bool = False) -> tuple[int, int] | None:
    """Return the device and the inode of the entry at a path; None if it cannot be reached."""
    try:
        status = os.stat(path, follow_symlinks=follow_links)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def digest_of(path: str) -> bytes | None:
    """Read the regular file at a path and return its digest; None if no regular file is there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        first = os.read(fd, _SMALL_BYTES)
        # Nearly always the whole content, so no stream is needed.
        if len(first) < _SMALL_BYTES and not (first and os.read(fd, 1)):
            if first or stat.S_ISREG(os.fstat(fd).st_mode):
                return digest_bytes(first)
            return None
        os.lseek(fd, 0, os.SEEK_SET)
        with open(fd, "rb", buffering=0, closefd=False) as file:
            return digest_stream(file)[0]
    except OSError:
        return None  # a folder
    finally:
        os.close(fd)
