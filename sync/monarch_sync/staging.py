"""Staging: what is ready to be shown, beside the replica's folder and on its file system.

A content gets here as it came, from a delta against what the host has, or from this host: the old
state, or the store. Whatever the way, its digest is verified before it counts.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from monarch_sync.delta import decode
from monarch_sync.digest import digest_bytes
from monarch_sync.disk import Content, Disk
from monarch_sync.entry import Entry
from monarch_sync.manifest import Manifest
from monarch_sync.messages import Blob
from monarch_sync.stamps import Stamps
from monarch_sync.store import Store

__all__ = ["Staging"]


class Staging:
    """The contents that the next commit needs, by digest."""

    def __init__(self, root: Path, folder: Path, store: Store, disk: Disk, stamps: Stamps) -> None:
        self._root = os.fspath(root)
        self.folder = os.fspath(folder)
        self._store = store
        self._disk = disk
        self._stamps = stamps
        self._ready: set[bytes] = set()
        self._is_made = False
        self.num_bytes = 0  # that came for the next commit

    def place(self, digest: bytes) -> str:
        """Where a content lies, or would."""
        return f"{self.folder}/{digest.hex()}"

    def add(self, blob: Blob, content: Content, old: Manifest, entry: Entry) -> bool:
        """Take in what came; False if it is not what it should be. Of a delta whose base is not
        to be had nothing is kept, so that the whole is asked for."""
        self._make()
        self.num_bytes += blob.size
        place, mode = self.place(blob.digest), entry.mode | 0o600
        if blob.encoding == "raw":
            if digest_bytes(content) != blob.digest:
                return False
            self._disk.put(place, [content], mode)
            self._ready.add(blob.digest)
            return True
        base = self.find(blob.base, old.path_of(blob.base))
        if base is not None:
            pieces = decode(content, os.path.getsize(base), entry.size)
            if self._disk.patch(place, pieces, base, mode) == blob.digest:
                self._ready.add(blob.digest)
            else:
                os.unlink(place)
        return True

    def fetch(self, entry: Entry, source: str | None, *, is_going: bool) -> bool:
        """See that a content lies here: it came, or it is on this host. A file that `is_going`
        from its place, or lies in the store, only gets a second name."""
        if entry.digest in self._ready:
            return True
        found = self.find(entry.digest, source)
        if found is None:
            return False
        self._make()
        if is_going or found != f"{self._root}/{source}":
            self._disk.link(found, self.place(entry.digest))
        else:
            self._disk.copy(found, self.place(entry.digest), entry.mode | 0o600)
        self._ready.add(entry.digest)
        return True

    def find(self, digest: bytes, path: str | None) -> str | None:
        """A file of this host with that content, now."""
        if path is not None:
            ours = f"{self._root}/{path}"
            if self._stamps.digest_of(ours) == digest:
                return ours
        stored = self._store.find(digest)
        return None if stored is None else os.fspath(stored)

    def can_move(self, folder: str, old: Manifest) -> bool:
        """Whether a folder holds what the manifest says and nothing else, so that it may be
        moved as it is. Python's bytecode goes with it."""
        above = f"{self._root}/{folder}"
        if _is_reached_by_link(self._root, folder):
            return False
        expected = set(old.below(folder))
        for path, folders, files in os.walk(above):
            relative = path[len(self._root) + 1 :]
            if os.path.basename(path) == "__pycache__":
                if folders or not all(name.endswith(".pyc") for name in files):
                    return False
                continue
            for name in (*folders, *files):
                inner = f"{relative}/{name}"
                if name == "__pycache__" and name in folders and inner not in expected:
                    continue
                if inner not in expected or not self._is_as_left(inner, old.get(inner)):
                    return False
                expected.discard(inner)
        return not expected

    def _is_as_left(self, path: str, entry: Entry | None) -> bool:
        full = f"{self._root}/{path}"
        if entry is None or entry.is_dir:
            return entry is not None and os.path.isdir(full) and not os.path.islink(full)
        if entry.is_link:
            return os.path.islink(full) and os.readlink(full) == entry.target
        return self._stamps.digest_of(full) == entry.digest

    def drop(self) -> None:
        """Forget all of it."""
        self._ready.clear()
        self._is_made = False
        self.num_bytes = 0
        shutil.rmtree(self.folder, ignore_errors=True)

    def clear(self) -> None:
        """After a commit: what it did not use goes."""
        self._ready.clear()
        self._is_made = False
        self.num_bytes = 0
        try:
            os.rmdir(self.folder)  # as a rule, all was moved out
        except OSError:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _make(self) -> None:
        if not self._is_made:
            os.makedirs(self.folder, exist_ok=True)
            self._is_made = True


def _is_reached_by_link(root: str, path: str) -> bool:
    parts = path.split("/")
    return any(os.path.islink(f"{root}/{'/'.join(parts[:i])}") for i in range(1, len(parts) + 1))
