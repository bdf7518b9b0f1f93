"""InPlace: large files that are changed in place, by a patch that is first saved beside them."""

from __future__ import annotations

import os
from collections.abc import Callable

from monarch_sync.content.digest import LARGE_BYTES
from monarch_sync.content.disk import Disk
from monarch_sync.content.stamps import lstat
from monarch_sync.replicas.patch_file import Blocks, Patch, Write
from monarch_sync.replicas.ready import ReadyContent
from monarch_sync.replicas.store import ContentStore
from monarch_sync.tree.entry import Entry

NOTE = ".patch"
_SPARE_BYTES = 1 << 20


class InPlace:
    """Prepares patches from an author's delta, from the store, or from an interrupted commit."""

    def __init__(self, root: str, store: ContentStore, disk: Disk) -> None:
        self._root = root
        self._store = store
        self._disk = disk
        self._blocks = Blocks()
        self._noted: dict[bytes, tuple[str, Patch]] = {}

    def forget(self) -> None:
        self._noted = {}

    def salvage(self, path: str) -> bool:
        """Take over the file at ``path`` if it is the note of a patch; return whether it is.

        For files that an interrupted commit left behind.
        """
        patch = Patch.read(path) if path.endswith(NOTE) else None
        if patch is not None:
            self._noted[patch.digest] = path, patch
        return patch is not None

    def return_old(self) -> None:
        """After an interrupted commit: keep the undo patches of changed files in the store."""
        for path, patch in self._noted.values():
            if lstat(path) is not None:
                self._store.take_patch(path, patch)

    def fit(
        self, entry: Entry, ours: Entry | None, before: os.stat_result, base: bytes,
        writes: list[Write], new_place: Callable[[], str],
    ) -> ReadyContent | None:  # fmt: skip
        """Get the patch ready that turns the existing file into ``entry``.

        ``before`` is the status of the file, ``base`` the digest of its content. Returns None if
        the file may not be patched: it has to be ``ours``, unchanged, with one name only.
        """
        if ours is None or ours.digest != base or before.st_nlink > 1:
            return None
        path = f"{self._root}/{entry.path}"
        if _is_program(entry, before) or not os.access(path, os.W_OK, effective_ids=True):
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
            base_size=before.st_size,
            digest=entry.digest,
            size=entry.size,
            writes=writes,
            undo=undo,
        )
        place = f"{new_place()}{NOTE}"
        self._disk.put(place, patch.encode(), 0o600)
        return ReadyContent(place, before, base, patch=patch)

    def fetch(
        self,
        entry: Entry,
        ours: Entry | None,
        before: os.stat_result,
        digest: bytes | None,
        new_place: Callable[[], str],
    ) -> ReadyContent | None:
        """Prepare the change from the file's present content to its new content, from an
        interrupted commit's patch or from the store. After an interrupted commit, the file may be
        anything between the old and the new content. Returns None if there is no patch."""
        if entry.size < LARGE_BYTES or digest is None:
            return None
        noted = self._noted.get(entry.digest)
        if noted is not None:
            at, patch = noted
            path = f"{self._root}/{entry.path}"
            made = self._blocks.patched(path, digest, patch.size, patch.writes)
            return ReadyContent(at, before, digest, patch=patch) if made == entry.digest else None
        back = self._store.find_patch(entry.digest, digest)
        if back is None or back.size != entry.size:
            return None
        return self.fit(entry, ours, before, digest, back.writes, new_place)


def _is_program(entry: Entry, before: os.stat_result) -> bool:
    """Return whether a file may be running, or be mapped as code. To write to it in place would end
    the programs that run it, if the system allows it at all."""
    name = entry.path.rpartition("/")[2]
    return bool((entry.mode | before.st_mode) & 0o111) or ".so" in name


def _has_room(path: str, writes: list[Write]) -> bool:
    """Return whether the file system has room for all bytes that a patch may write, so that the
    commit does not run out of room half-way."""
    status = os.statvfs(path)
    needed = 3 * sum(len(data) for _, data in writes)
    return status.f_bavail * status.f_frsize > needed + _SPARE_BYTES
