"""Readings: the content of files when they were last read, so that they need not be read again.

The cache is not fooled by a change within the same clock tick: a file that was modified as late as
it was read is read again next time, as git does. A file whose time is in the future, because a
clock was wrong, is read every time. The status must be the same before and after reading; a file
that changes while it is read is read again. Many programs empty a file before they write it, so if
a file is suddenly empty while a program has it open to write, the scan waits for the content.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple

from monarch_sync.content.chunks import cut
from monarch_sync.content.digest import LARGE_BYTES, digest_bytes
from monarch_sync.content.stamps import identity_of
from monarch_sync.progress import progress
from monarch_sync.scanning.contents import Contents
from monarch_sync.scanning.reading import is_being_written, open_file
from monarch_sync.tree.entry import Entry

_TICK_NS = 20_000_000
_MAX_TRIES = 5
_EMPTY_SECONDS = 0.5  # a program may keep a file open and have nothing to write
_STEP_SECONDS = 0.002

_Key = tuple[int, int]


class Reading(NamedTuple):
    """The digest of a file's content, with the file's size and times when it was read, the time of
    the read, and the path by which it was read."""

    size: int
    mtime_ns: int
    ctime_ns: int
    digest: bytes
    read_ns: int
    local: str

    def is_still(self, status: os.stat_result) -> bool:
        """Return whether the file certainly still has the content that was read. ``status`` is its
        present status.
        """
        size, mtime_ns, ctime_ns, _, read_ns, _ = self
        return (
            mtime_ns == status.st_mtime_ns
            and ctime_ns == status.st_ctime_ns
            and size == status.st_size
            and mtime_ns + _TICK_NS < read_ns
            and ctime_ns + _TICK_NS < read_ns
        )


class Readings:
    """The readings of one workspace, by inode: a file keeps its inode if it is renamed, and is not
    read again."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        #: By device and inode; during a full scan, those of the last scan are separate.
        self._readings: dict[_Key, Reading] = {}
        self._old_readings: dict[_Key, Reading] = {}
        #: The names of files that have several: a write to one changes them all.
        self._names: dict[_Key, set[str]] = {}
        #: Files of these that may have a name that we do not see.
        self._shared: set[_Key] = set()
        #: Other names of files that have turned out to be changed.
        self._stale: set[str] = set()

    def begin(self) -> None:
        """Begin a full scan: files that it does not meet are forgotten at its `end`."""
        self._old_readings, self._readings = self._readings, {}
        self._names.clear()
        self._shared.clear()

    def end(self) -> None:
        """End a full scan: forget the files that it did not meet."""
        self._old_readings = {}
        self._stale.clear()

    def stale_names(self) -> set[str]:
        """Return the paths of files with several names (hard links) whose content a reading found
        changed. Each is returned by one call only.
        """
        stale, self._stale = self._stale, set()
        return stale

    def look(self, local: str, status: os.stat_result, last: Entry | None) -> Reading:
        """Return the reading of a regular file. Read the file if it may have changed since the last
        reading.

        ``last`` is the entry that the last scan found at its path. Raises ``OSError`` if the file
        cannot be read.
        """
        key = (status.st_dev, status.st_ino)
        reading = self._readings.get(key) or self._old_readings.get(key)
        if status.st_nlink > 1:
            self._note_names(key, local, status.st_nlink, reading)
        elif self._names.pop(key, None):
            # When it gets a second name again, its first name may be another than now.
            self._shared.discard(key)
        if reading is None or not reading.is_still(status):
            self._stale.update(self._names.get(key, ()))
            reading = _read(local, status, self._contents, last)
            progress().read(reading.size)
        elif reading.local != local:
            reading = reading._replace(local=local)
        self._readings[key] = reading
        return reading

    @property
    def has_links(self) -> bool:
        """Whether a scan has met a file with several names (hard links)."""
        return bool(self._names)

    def same_files(self, paths: set[str]) -> set[str] | None:
        """Return the other names of the files at ``paths`` (hard links), and all names of files
        that may change without an event.

        Returns None if not all other names are known: a file has got a second name, and was moved
        from the path at which it was read.
        """
        keys: set[_Key] = set()
        for local in paths:
            try:
                status = os.lstat(local)
            except OSError:
                continue
            key = (status.st_dev, status.st_ino)
            keys.add(key)
            reading = self._readings.get(key)
            if status.st_nlink > 1 and reading is not None and key not in self._names:
                if identity_of(reading.local) != key:
                    return None
                self._names[key] = {reading.local}
        moves = _moves_with(paths)
        keys.update(key for key, names in self._names.items() if any(map(moves, names)))
        return set().union(*(self._names.get(key, ()) for key in keys | self._shared))

    def _note_names(self, key: _Key, local: str, num: int, reading: Reading | None) -> None:
        names = self._names.setdefault(key, set())
        names.add(local)
        if reading is not None:
            names.add(reading.local)
        if len(names) >= num:
            # A name that is gone, or is another file's now, may have been moved out of sight.
            names.intersection_update([name for name in names if identity_of(name) == key])
        (self._shared.add if len(names) < num else self._shared.discard)(key)


def _moves_with(paths: set[str]) -> Callable[[str], bool]:
    """Return a function that tells whether a path is one of ``paths`` or inside one of them."""

    def moves(path: str) -> bool:
        while path:
            if path in paths:
                return True
            path = path.rpartition("/")[0]
        return False

    return moves


def _read(local: str, status: os.stat_result, contents: Contents, last: Entry | None) -> Reading:
    chunks = contents.chunks(last.digest) if last is not None else None
    for _ in range(_MAX_TRIES):
        read_ns = time.time_ns()
        fd = open_file(local)
        try:
            if last is not None and last.size:
                status = _filled(fd, status)
            if status.st_size >= LARGE_BYTES:
                with (
                    open(fd, "rb", buffering=0, closefd=False) as file,
                    progress().reading(local, status.st_size, file) as counted,
                ):
                    digest, size, chunks = cut(counted, chunks)
                contents.remember_chunks(digest, chunks)
            else:
                content = _read_all(fd, status.st_size)
                digest, size = digest_bytes(content), len(content)
                contents.remember(digest, content)
            after = os.fstat(fd)
        finally:
            os.close(fd)
        unmoved = (after.st_mtime_ns, after.st_size) == (status.st_mtime_ns, status.st_size)
        status = after
        if unmoved and size == after.st_size:
            break
    return Reading(
        size=size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        digest=digest,
        read_ns=read_ns,
        local=local,
    )


def _filled(fd: int, status: os.stat_result) -> os.stat_result:
    """Wait while a file is empty and a program has it open to write, for ``_EMPTY_SECONDS`` at
    most; return its status after that.
    """
    deadline = time.monotonic() + _EMPTY_SECONDS
    while not status.st_size and is_being_written(fd) and time.monotonic() < deadline:
        time.sleep(_STEP_SECONDS)
        status = os.fstat(fd)
    return status


def _read_all(fd: int, size: int) -> bytes:
    # One byte more than expected: the end shows without another call.
    content = os.read(fd, size + 1)
    if len(content) == size:
        return content
    parts = [content]
    while part := os.read(fd, 1 << 20):
        parts.append(part)
    return b"".join(parts)
