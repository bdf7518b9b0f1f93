"""OnDisk: the present entries of a replica's folder, whichever program put them there. No link is
followed."""

from __future__ import annotations

import errno
import os
import stat

from monarch_sync.content.stamps import Stamps, lstat
from monarch_sync.mounts import mounted_inside
from monarch_sync.replicas.store import ContentStore
from monarch_sync.tree.diff import SyncPlan
from monarch_sync.tree.entry import Entry, parent_of
from monarch_sync.tree.manifest import Manifest

_MAX_PATH_BYTES = 4095
_MAX_NAME_BYTES = 255
_MAX_CHAR_BYTES = 4

_Found = tuple[str, os.stat_result]


class OnDisk:
    """Looks at files by their manifest paths. Remembers which paths are real folders, until
    `forget`."""

    def __init__(self, root: str, store: ContentStore, stamps: Stamps) -> None:
        self.root = root
        self._store = store
        self._stamps = stamps
        self._user = os.geteuid()
        self._room = _MAX_PATH_BYTES - len(os.fsencode(f"{self.root}/"))
        self._real = {"": True}
        self._foreign: set[str] = set()

    def forget(self) -> None:
        self._real = {"": True}
        self._foreign.clear()

    def is_there(self) -> bool:
        """Whether the replica's folder itself exists, under any name."""
        try:
            status = os.stat(self.root)
        except FileNotFoundError:
            return False
        return self._is_folder("", status)

    def is_real(self, folder: str) -> bool:
        """Return whether a folder and all folders above it are real, not links."""
        is_real = self._real.get(folder)
        if is_real is None:
            is_folder = self._is_folder(folder, lstat(f"{self.root}/{folder}"))
            is_real = self._real[folder] = is_folder and self.is_real(parent_of(folder))
        return is_real

    def _is_folder(self, folder: str, status: os.stat_result | None) -> bool:
        if status is None or not stat.S_ISDIR(status.st_mode):
            return False
        if status.st_uid != self._user:
            self._foreign.add(folder)
        return True

    def check_open(self, plan: SyncPlan) -> None:
        """Raise ``PermissionError`` if a plan would write to a closed folder of another user.
        Checked before the commit, which could not be completed. A closed folder of our own can be
        opened."""
        paths = [path for pair in plan.folders_moved for path in (*pair, f"{pair[0]}/..")]
        if plan.links or plan.removes:
            paths += [entry.path for part in (plan.links, plan.removes) for entry in part]
        for path in paths:
            self.is_real(parent_of(path))
        if not self._foreign:
            return
        paths += [entry.path for part in (plan.folders, plan.files) for entry in part]
        for folder in self._foreign & {parent_of(path) for path in paths}:
            place = f"{self.root}/{folder}".rstrip("/")
            if not os.access(place, os.W_OK | os.X_OK, effective_ids=True):
                reason = "this folder belongs to another user, and we may not write to it"
                raise PermissionError(errno.EACCES, reason, place)

    def check_short(self, plan: SyncPlan, new: Manifest) -> None:
        """Raise ``OSError`` if a plan makes a path that is too long for this file system. A whole
        new folder could still be moved there, but its files could never be deleted."""
        room = self._room
        for part in (plan.folders, plan.files, plan.links):
            for entry in part:
                if _may_be_longer(entry.path, room):
                    self._check_short(entry.path)
        for before, after in plan.folders_moved:
            if len(os.fsencode(after)) <= len(os.fsencode(before)):
                continue  # It fits in where it is.
            for folder, node in new.folder(after).walk(after):
                if _may_be_longer(folder, room - _MAX_NAME_BYTES - 1):
                    for name in node.children:
                        self._check_short(f"{folder}/{name}")

    def _check_short(self, path: str) -> None:
        if len(os.fsencode(path)) > self._room:
            reason = os.strerror(errno.ENAMETOOLONG)
            raise OSError(errno.ENAMETOOLONG, reason, f"{self.root}/{path}")

    def check_unmounted(self, plan: SyncPlan) -> None:
        """Raise ``OSError`` if a plan would replace or delete a mount, which is impossible. Checked
        before the commit, too. A folder that is a mount point may stay."""
        mounts = mounted_inside(self.root)
        if not mounts:
            return
        gone = [entry for entry in plan.removes if not entry.is_dir]
        put = [entry for part in (plan.files, plan.links, plan.folders) for entry in part]
        there = [entry for entry in put if entry.path in mounts and not self._is_already(entry)]
        for entry in (*gone, *there):
            if entry.path in mounts:
                reason = "something is mounted here, so it cannot be replaced"
                raise OSError(errno.EBUSY, reason, f"{self.root}/{entry.path}")

    def _is_already(self, entry: Entry) -> bool:
        status, digest = self.look(entry.path)
        if entry.is_dir:
            return status is not None and stat.S_ISDIR(status.st_mode)
        return entry.is_file and digest == entry.digest

    def look(self, path: str) -> tuple[os.stat_result | None, bytes | None]:
        """Return the status and the digest of the file at a path; both None if nothing is there, or
        if a folder above it is a link."""
        if not self.is_real(parent_of(path)):
            return None, None
        full = f"{self.root}/{path}"
        before = lstat(full)
        return before, None if before is None else self._stamps.digest_of(full, before)

    def find(self, digest: bytes, path: str | None) -> _Found | None:
        """Return a file of this host with that content, at ``path`` or in the store, with its
        status; None if there is none."""
        if path is not None and self.is_real(parent_of(path)):
            ours = f"{self.root}/{path}"
            status = lstat(ours)
            if status is not None and self._stamps.digest_of(ours, status) == digest:
                return ours, status
        return self._store.find(digest)


def _may_be_longer(path: str, room: int) -> bool:
    """Return whether a path may be too long in bytes, so that they have to be counted."""
    return len(path) * _MAX_CHAR_BYTES > room
