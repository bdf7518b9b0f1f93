"""Store: the contents of earlier states, by digest, on a host's disk.

A file that a commit replaces is moved here afterwards instead of being deleted. So returning to a
branch, or a rollback, sends no bytes over the network: the content is taken from here. The size is
bounded: the least recently used contents are dropped.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from monarch_sync.content.disk import Disk
from monarch_sync.content.stamps import Stamps, digest_of, lstat
from monarch_sync.replicas.patch_file import Patch

DEFAULT_MAX_BYTES = 1 << 30
_PATCH = ".patch"
_MAX_STEPS = 64


class ContentStore:
    """A folder of files named by their content's digest. Keeps `max_bytes` at most."""

    def __init__(
        self, folder: Path, disk: Disk, stamps: Stamps, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None:
        self._folder = os.fspath(folder)
        self._disk = disk
        self._stamps = stamps
        self._max_bytes = max_bytes
        folder.mkdir(parents=True, exist_ok=True)
        disk.finish_exchanges(self._folder)
        files = []
        with os.scandir(folder) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                files.append((status.st_mtime_ns, entry.name, status.st_size))
        #: Bytes by file name, the least recently used first; after a restart, the oldest first.
        self._sizes = OrderedDict((name, size) for _, name, size in sorted(files))
        self._num_bytes = sum(self._sizes.values())

    @property
    def num_bytes(self) -> int:
        """How many bytes are stored."""
        return self._num_bytes

    def find(self, digest: bytes) -> tuple[str, os.stat_result] | None:
        """Return the path and the status of a stored file that still has this content; else
        None."""
        name = digest.hex()
        if name not in self._sizes:
            return None
        self._sizes.move_to_end(name)
        path = f"{self._folder}/{name}"
        status = lstat(path)
        if status is None or self._stamps.digest_of(path, status) != digest:
            return None
        return path, status

    def has(self, digest: bytes) -> bool:
        """Return whether the store lists a content, or a patch that makes it; the file itself is
        not checked."""
        if not self._sizes:
            return False
        name = digest.hex()
        return name in self._sizes or f"{name}{_PATCH}" in self._sizes

    def take(self, path: str, digest: bytes, status: os.stat_result) -> None:
        """Move a file into the store. ``digest`` is that of its content at the time of ``status``.
        A file that the store cannot use is deleted."""
        size = status.st_size
        if size > self._max_bytes:
            self._disk.unlink(path)  # It would displace all others, and then be dropped itself.
            return
        if self.find(digest) is not None:
            # Some file systems write both files to the disk before a rename over an equal file.
            self._disk.unlink(path)
            return
        name = digest.hex()
        stored = f"{self._folder}/{name}"
        if name in self._sizes and os.path.exists(stored) and os.path.samefile(path, stored):
            self._disk.unlink(path)  # two names of one file, which a rename would leave
        else:
            self._disk.rename(path, stored)
        self._num_bytes += size - self._sizes.pop(name, 0)
        self._sizes[name] = size
        if (stored_status := lstat(stored)) is not None:
            self._stamps.note(stored_status, digest, status.st_mtime_ns)

    def take_patch(self, path: str, patch: Patch) -> None:
        """Store a patch that was applied. The content before it can be restored from it."""
        name = f"{patch.base.hex()}{_PATCH}"
        size = sum(len(data) for _, data in (*patch.writes, *patch.undo))
        self._disk.rename(path, f"{self._folder}/{name}")
        self._num_bytes += size - self._sizes.pop(name, 0)
        self._sizes[name] = size

    def find_patch(self, digest: bytes, base: bytes) -> Patch | None:
        """Return the patch from the content ``base`` to the content ``digest``, joined from stored
        patches. None if no chain of at most ``_MAX_STEPS`` stored patches connects the two.
        """
        patch: Patch | None = None
        for _ in range(_MAX_STEPS):
            name = f"{digest.hex()}{_PATCH}"
            step = Patch.read(f"{self._folder}/{name}") if name in self._sizes else None
            if step is None or step.base != digest:
                return None
            back = step.back()
            patch = back if patch is None else back.then(patch)
            digest = back.base
            if digest == base:
                return patch
        return None

    def gone(self, digest: bytes) -> None:
        """Note that a content has been moved out of the store."""
        self._num_bytes -= self._sizes.pop(digest.hex(), 0)

    def rename_exchanged(self, digests: Iterable[bytes]) -> None:
        """After an interrupted commit: rename the stored files that have another content than their
        name says.

        A commit exchanges a stored file with the file that it replaces, so the stored file may have
        the replaced content.
        """
        self._disk.finish_exchanges(self._folder)
        for digest in digests:
            name = digest.hex()
            path = f"{self._folder}/{name}"
            if name not in self._sizes:
                continue
            status, digest_there = lstat(path), digest_of(path)
            if digest_there == digest:
                continue
            self.gone(digest)
            if status is not None and digest_there is not None:
                self.take(path, digest_there, status)

    def trim(self, max_bytes: int | None = None) -> None:
        """Drop the least recently used contents until at most ``max_bytes`` are left.

        Without ``max_bytes``, the store's own bound counts.
        """
        bound = self._max_bytes if max_bytes is None else max_bytes
        while self._num_bytes > bound and self._sizes:
            name, size = self._sizes.popitem(last=False)
            self._num_bytes -= size
            with contextlib.suppress(OSError):
                os.unlink(f"{self._folder}/{name}")
