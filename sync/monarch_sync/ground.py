"""Ground: what stands in a replica's folder now, whoever put it there. No link is followed."""

from __future__ import annotations

import os
import stat

from monarch_sync.entry import parent_of
from monarch_sync.stamps import Stamps, lstat
from monarch_sync.store import Store

__all__ = ["Ground"]

_Found = tuple[str, os.stat_result]


class Ground:
    """Looks at files by their paths in a manifest. Which paths are real folders is remembered, up
    to `forget`."""

    def __init__(self, root: str, store: Store, stamps: Stamps) -> None:
        self.root = root
        self._store = store
        self._stamps = stamps
        self._real = {"": True}

    def forget(self) -> None:
        self._real = {"": True}

    def is_real(self, folder: str) -> bool:
        """Whether it and all above it are folders, and no links."""
        is_real = self._real.get(folder)
        if is_real is None:
            status = lstat(f"{self.root}/{folder}")
            is_folder = status is not None and stat.S_ISDIR(status.st_mode)
            is_real = self._real[folder] = is_folder and self.is_real(parent_of(folder))
        return is_real

    def look(self, path: str) -> tuple[os.stat_result | None, bytes | None]:
        """What stands at a path that is reached by no link, and what it holds."""
        if not self.is_real(parent_of(path)):
            return None, None
        full = f"{self.root}/{path}"
        before = lstat(full)
        return before, None if before is None else self._stamps.digest_of(full, before)

    def find(self, digest: bytes, path: str | None) -> _Found | None:
        """A file of this host with that content, at the path or in the store; with its status."""
        if path is not None and self.is_real(parent_of(path)):
            ours = f"{self.root}/{path}"
            status = lstat(ours)
            if status is not None and self._stamps.digest_of(ours, status) == digest:
                return ours, status
        return self._store.find(digest)
