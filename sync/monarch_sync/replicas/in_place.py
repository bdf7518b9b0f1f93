"""InPlace: large files that are changed in place, by a patch that is first saved beside them."""

from __future__ import annotations

import os
from collections.abc import Callable

from monarch_sync.content.digest import LARGE_BYTES
from monarch_sync.content.stamps import lstat
from monarch_sync.replicas.on_disk import OnDisk
from monarch_sync.replicas.patch_file import Blocks, Patch, Write
from monarch_sync.replicas.ready import ReadyContent
from monarch_sync.tree.entry import Entry

NOTE = ".patch"
_SPARE_BYTES = 1 << 20


class InPlace:
    """Prepares patches for large files, which a commit changes in place instead of replacing them.

    A patch comes from the author's delta, from the store, or from an interrupted commit.
    ``new_place`` returns a free path in the staging folder.
    """

    def __init__(self, on_disk: OnDisk, new_place: Callable[[], str]) -> None:
        self._new_place = new_place
        self._root = on_disk.root
        self._store = on_disk.store
        self._disk = on_disk.disk
        self._blocks = Blocks()
        #: The patches of an interrupted commit with the paths of their notes, by the new digest.
        self._interrupted: dict[bytes, tuple[str, Patch]] = {}

    def forget(self) -> None:
        """Forget the patches of an interrupted commit."""
        self._interrupted = {}

    def salvage(self, path: str) -> bool:
        """Take over a file that an interrupted commit left in the staging folder, if it is a saved
        patch; return whether it is."""
        patch = Patch.read(path) if path.endswith(NOTE) else None
        if patch is not None:
            self._interrupted[patch.digest] = path, patch
        return patch is not None

    def return_old(self) -> None:
        """Move the saved patches of an interrupted commit to the store. A later push can then
        restore the content before these patches.
        """
        for path, patch in self._interrupted.values():
            if lstat(path) is not None:
                self._store.take_patch(path, patch)

    def fit(
        self,
        entry: Entry,
        old_entry: Entry | None,
        status: os.stat_result,
        base: bytes,
        writes: list[Write],
    ) -> ReadyContent | None:
        """Save the patch that turns an existing file into ``entry``, and return it as ready
        content.

        ``status`` is the status of the file, ``base`` the digest of its content. Returns None if
        the file may not be patched in place: it must have the content of ``old_entry`` and one name
        only, and be no program.
        """
        if old_entry is None or old_entry.digest != base or status.st_nlink > 1:
            return None
        path = f"{self._root}/{entry.path}"
        if _is_program(entry, status) or not os.access(path, os.W_OK, effective_ids=True):
            return None
        if not _has_room(path, writes):
            return None
        if self._blocks.patched(path, base, entry.size, writes) != entry.digest:
            return None
        undo = self._blocks.undo(path, entry.size, writes)
        if undo is None:
            return None
        patch = Patch(
            base=base,
            base_size=status.st_size,
            digest=entry.digest,
            size=entry.size,
            writes=writes,
            undo=undo,
        )
        note = f"{self._new_place()}{NOTE}"
        self._disk.put(note, patch.encode(), 0o600)
        return ReadyContent(note, status, base, patch=patch)

    def fetch(
        self, entry: Entry, old_entry: Entry | None, status: os.stat_result, digest: bytes | None
    ) -> ReadyContent | None:
        """Return a patch from the file's present content to the content of ``entry``, as ready
        content.

        The patch is that of an interrupted commit if there is one for this content, and else one
        from the store. None if it does not fit the file. ``digest`` is the digest of the present
        content; after an interrupted commit, that may be a mixture of the old and the new.
        """
        if entry.size < LARGE_BYTES or digest is None:
            return None
        if entry.digest in self._interrupted:
            note, patch = self._interrupted[entry.digest]
            path = f"{self._root}/{entry.path}"
            if self._blocks.patched(path, digest, patch.size, patch.writes) != entry.digest:
                return None
            return ReadyContent(note, status, digest, patch=patch)
        undo = self._store.find_patch(entry.digest, digest)
        if undo is None or undo.size != entry.size:
            return None
        return self.fit(entry, old_entry, status, digest, undo.writes)


def _is_program(entry: Entry, status: os.stat_result) -> bool:
    """Return whether a file may be running, or be mapped as code. Writing to it in place would
    crash the programs that run it, where the system allows it at all."""
    name = entry.path.rpartition("/")[2]
    return bool((entry.mode | status.st_mode) & 0o111) or ".so" in name


def _has_room(path: str, writes: list[Write]) -> bool:
    """Return whether the file system has room for all bytes that a patch may write, so that the
    commit does not run out of room half-way."""
    status = os.statvfs(path)
    needed = 3 * sum(len(data) for _, data in writes)
    return status.f_bavail * status.f_frsize > needed + _SPARE_BYTES
