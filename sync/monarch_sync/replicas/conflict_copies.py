"""Conflict copies: a file that is in the way of a commit is kept under another name.

A file that is as we left it goes to the store. Files that other programs made or changed get
another name beside their own (`kept_name`), with the first digits of their digest, or zeros if that
is unknown.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable

from monarch_sync.content.digest import short
from monarch_sync.content.stamps import digest_of
from monarch_sync.replicas.on_disk import OnDisk
from monarch_sync.tree.manifest import Manifest

_Rename = Callable[[str, str], None]


class ConflictCopies:
    """The conflict copies of one commit. ``old`` is the state before it; ``kept`` are the names of
    the copies."""

    def __init__(self, on_disk: OnDisk, old: Manifest) -> None:
        self._root = on_disk.root
        self._store = on_disk.store
        self._disk = on_disk.disk
        self._stamps = on_disk.stamps
        self._old = old
        self.kept: list[str] = []

    def give_way(self, name: str, status: os.stat_result, digest: bytes | None) -> None:
        """Make sure that a rename may overwrite the entry ``name``.

        If the entry is not the same as in the old state, it is kept as a conflict copy. The copy of
        a file is a hard link where possible, so that the file also stays at ``name`` until the
        rename.
        """
        if stat.S_ISREG(status.st_mode):
            try:
                self._set_aside(name, status, digest, self._disk.link)
            except PermissionError:  # another user's, which we may not even read
                self._set_aside(name, status, digest, self._disk.rename)
        elif not self._is_our_link(name, status):
            self.keep(name, None, self._disk.move)

    def clear(self, name: str, status: os.stat_result) -> None:
        """Free a path. If its entry is the same as in the old state, it goes to the store or is
        deleted; otherwise it is kept as a conflict copy.
        """
        if stat.S_ISREG(status.st_mode):
            digest = self._stamps.digest_of(f"{self._root}/{name}", status)
            self._set_aside(name, status, digest)
        elif self._is_our_link(name, status):
            self._disk.unlink(f"{self._root}/{name}")
        else:
            self.keep(name, None, self._disk.move)

    def keep(self, name: str, digest: bytes | None, rename: _Rename) -> None:
        """Keep the entry at a path as a conflict copy, and add the copy's name to ``kept``.
        ``rename`` links or moves the entry to that name.
        """
        kept = kept_name(self._root, name, short(digest) if digest else NO_DIGEST)
        rename(f"{self._root}/{name}", f"{self._root}/{kept}")
        self.kept.append(kept)

    def _set_aside(
        self, name: str, status: os.stat_result, digest: bytes | None, rename: _Rename | None = None
    ) -> None:
        """Keep a regular file as a conflict copy if its content is not that of the old state.

        ``rename`` makes the copy; a file with the old content then stays where it is. Without
        ``rename``, the path is free afterwards: the conflict copy is moved, and a file with the old
        content goes to the store or is deleted.
        """
        path = f"{self._root}/{name}"
        old_entry = self._old.get(name)
        if old_entry is None or digest is None or old_entry.digest != digest:
            self.keep(name, digest, rename or self._disk.rename)
        elif rename is None and status.st_nlink > 1:
            self._disk.unlink(path)  # Its other name may be used to change it.
        elif rename is None:
            self._store.take(path, digest, status)

    def _is_our_link(self, name: str, status: os.stat_result) -> bool:
        old_entry = self._old.get(name)
        return stat.S_ISLNK(status.st_mode) and old_entry is not None and old_entry.is_link


NO_DIGEST = "0" * 8
"""The mark of folders and links, which have no content."""

_MAX_NAME_BYTES = 255


def kept_name(root: str, name: str, mark: str = NO_DIGEST) -> str:
    """Return the path of a conflict copy of ``name``, in the same folder: ``NAME.host-MARK``.

    NAME is cut if the result would be too long. If an entry with another content has that path, the
    name is ``NAME.host-MARK-2``, and so on.
    """
    folder, slash, base = name.rpartition("/")
    for number in itertools.count(1):
        tail = f".host-{mark}" if number == 1 else f".host-{mark}-{number}"
        while len(os.fsencode(base)) + len(tail) > _MAX_NAME_BYTES:
            base = base[:-1]
        kept = f"{folder}{slash}{base}{tail}"
        if _may_be_at(f"{root}/{name}", f"{root}/{kept}"):
            return kept
    raise AssertionError("there are more numbers than files")


def _may_be_at(path: str, kept: str) -> bool:
    """Return whether a conflict copy of ``path`` may have the path ``kept``: nothing is there, or
    an entry with the same content."""
    try:
        kept_status = os.lstat(kept)
    except FileNotFoundError:
        return True
    status = os.lstat(path)
    if os.path.samestat(status, kept_status):
        return True
    if stat.S_ISLNK(status.st_mode) and stat.S_ISLNK(kept_status.st_mode):
        return os.readlink(path) == os.readlink(kept)
    are_files = stat.S_ISREG(status.st_mode) and stat.S_ISREG(kept_status.st_mode)
    has_size = status.st_size == kept_status.st_size
    return are_files and has_size and digest_of(path) == digest_of(kept)
