"""Contents by digest, on a host's disk: what was there before, in case it comes back.

A file that a commit replaces is moved here instead of being thrown away, so that switching a
branch back, or a rollback, moves no bytes over the network. Bounded: the least recently used go.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from pathlib import Path

from monarch_sync.digest import digest_stream
from monarch_sync.disk import Disk

__all__ = ["Store"]

DEFAULT_MAX_BYTES = 1 << 30


class Store:
    """A folder of files named by their content's digest. Keeps `max_bytes` at most."""

    def __init__(self, folder: Path, disk: Disk, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._folder = os.fspath(folder)
        self._disk = disk
        self._max_bytes = max_bytes
        folder.mkdir(parents=True, exist_ok=True)
        found = []
        with os.scandir(folder) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                found.append((status.st_mtime_ns, entry.name, status.st_size))
        # The least recently used first; over a restart, the oldest.
        self._sizes = OrderedDict((name, size) for _, name, size in sorted(found))
        self._num_bytes = sum(self._sizes.values())

    @property
    def num_bytes(self) -> int:
        """How much is kept."""
        return self._num_bytes

    def find(self, digest: bytes) -> Path | None:
        """Where a content lies, if it is here and still what it should be."""
        name = digest.hex()
        if name not in self._sizes:
            return None
        self._sizes.move_to_end(name)
        path = Path(self._folder, name)
        try:
            with open(path, "rb", buffering=0) as file:
                found, _ = digest_stream(file)
        except OSError:
            return None
        return path if found == digest else None

    def has(self, digest: bytes) -> bool:
        """Whether a content is listed here; it is looked at only when it is used."""
        return digest.hex() in self._sizes

    def take(self, path: str, digest: bytes, size: int) -> None:
        """Move a file in."""
        place = self._enter(digest, size)
        if os.path.exists(place) and os.path.samefile(path, place):
            self._disk.unlink(path)  # two names of one file: renaming would leave both
        else:
            self._disk.rename(path, place)

    def share(self, path: str, digest: bytes, size: int) -> None:
        """Keep the content of a file that is about to be replaced where it stands."""
        self._disk.link(path, self._enter(digest, size))

    def trim(self) -> None:
        """Drop the least recently used until the bound is kept."""
        while self._num_bytes > self._max_bytes and self._sizes:
            name, size = self._sizes.popitem(last=False)
            self._num_bytes -= size
            with contextlib.suppress(OSError):
                os.unlink(f"{self._folder}/{name}")

    def _enter(self, digest: bytes, size: int) -> str:
        name = digest.hex()
        self._num_bytes += size - self._sizes.pop(name, 0)
        self._sizes[name] = size
        return f"{self._folder}/{name}"
