"""Contents by digest, on a host's disk: what was there before, in case it comes back.

A file that a commit replaces is moved here instead of being thrown away, so that switching a
branch back, or a rollback, moves no bytes over the network. Bounded: the oldest go first.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from monarch_sync.digest import digest_stream
from monarch_sync.disk import Disk

__all__ = ["Store"]

DEFAULT_MAX_BYTES = 1 << 30


class Store:
    """A folder of files named by their content's digest."""

    def __init__(self, folder: Path, disk: Disk, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._folder = folder
        self._disk = disk
        self._max_bytes = max_bytes
        folder.mkdir(parents=True, exist_ok=True)
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        self._num_bytes = sum(sizes.values())

    def find(self, digest: bytes) -> Path | None:
        """Where a content lies, if it is here and still what it should be."""
        path = self._folder / digest.hex()
        try:
            with open(path, "rb") as file:
                found, _ = digest_stream(file)
        except OSError:
            return None
        return path if found == digest else None

    def take(self, path: Path, digest: bytes) -> None:
        """Move a file in."""
        self._num_bytes += path.stat().st_size
        self._disk.rename(path, self._folder / digest.hex())

    def share(self, path: Path, digest: bytes) -> None:
        """Keep the content of a file that is about to be replaced where it stands."""
        self._num_bytes += path.stat().st_size
        self._disk.link(path, self._folder / digest.hex())

    def trim(self) -> None:
        """Drop the oldest until the bound is kept."""
        if self._num_bytes <= self._max_bytes:
            return
        files = [(path.stat().st_mtime_ns, path) for path in self._folder.iterdir()]
        for _, path in sorted(files):
            if self._num_bytes <= self._max_bytes:
                return
            size = path.stat().st_size
            with contextlib.suppress(OSError):
                os.unlink(path)
                self._num_bytes -= size
