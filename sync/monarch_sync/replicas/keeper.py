"""Keeper: sees that nothing is lost of what stands where a commit wants to put something.

A file as we left it goes to the store. What anybody else put there, or changed, gets another name
beside its own (`kept_names.py`), with the first digits of its digest, or zeros for want of one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from monarch_sync.digest import short
from monarch_sync.disk import Disk
from monarch_sync.entry import Entry
from monarch_sync.manifest import Manifest
from monarch_sync.replicas.kept_names import NO_DIGEST, kept_name
from monarch_sync.replicas.store import Store
from monarch_sync.stamps import Stamps

__all__ = ["Keeper"]

_Rename = Callable[[str, str], None]


class Keeper:
    """Of one commit; ``old`` is the state that it starts from. ``kept``: the names given."""

    def __init__(self, root: str, store: Store, disk: Disk, stamps: Stamps, old: Manifest) -> None:
        self._root = root
        self._store = store
        self._disk = disk
        self._stamps = stamps
        self._old = old
        self.kept: list[str] = []

    def give_way(self, name: str, status: os.stat_result, digest: bytes | None) -> None:
        """See that what stands here may be renamed over: a file of anybody else's has a second
        name. It stays visible until it is replaced."""
        if stat.S_ISREG(status.st_mode):
            try:
                self._set_aside(name, status, digest, self._disk.link)
            except PermissionError:  # somebody else's, which we may not even read
                self._set_aside(name, status, digest, self._disk.rename)
        elif not self._is_our_link(name, status):
            self.keep(name, None, self._disk.move)

    def clear(self, name: str, status: os.stat_result) -> None:
        """Make room: what stands here goes, and is saved."""
        if stat.S_ISREG(status.st_mode):
            digest = self._stamps.digest_of(f"{self._root}/{name}", status)
            self._set_aside(name, status, digest)
        elif self._is_our_link(name, status):
            self._disk.unlink(f"{self._root}/{name}")
        else:
            self.keep(name, None, self._disk.move)

    def keep(self, name: str, digest: bytes | None, how: _Rename) -> None:
        """Give what stands here another name."""
        kept = kept_name(self._root, name, short(digest) if digest else NO_DIGEST)
        how(f"{self._root}/{name}", f"{self._root}/{kept}")
        self.kept.append(kept)

    def _set_aside(
        self, name: str, status: os.stat_result, digest: bytes | None, how: _Rename | None = None
    ) -> None:
        """Save a regular file: in the store if it is as we left it, else kept beside. Without
        ``how`` it is moved there, so that its own place is free."""
        path = f"{self._root}/{name}"
        ours = self._old.get(name)
        if ours is None or digest is None or ours.digest != digest:
            self.keep(name, digest, how or self._disk.rename)
        elif how is None and status.st_nlink > 1:
            self._disk.unlink(path)  # It lives on under another name, where it may be changed.
        elif how is None:
            self._store.take(path, digest, status)

    def _is_our_link(self, name: str, status: os.stat_result) -> bool:
        ours: Entry | None = self._old.get(name)
        return stat.S_ISLNK(status.st_mode) and ours is not None and ours.is_link
