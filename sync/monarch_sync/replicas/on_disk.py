"""OnDisk: the entries that are in a replica's folder now, whichever program put them there. No link
is followed."""

from __future__ import annotations

import errno
import os
import stat

from monarch_sync.content.disk import Disk
from monarch_sync.content.stamps import Stamps, lstat
from monarch_sync.mounts import mounted_inside
from monarch_sync.replicas.store import ContentStore
from monarch_sync.tree.diff import SyncPlan
from monarch_sync.tree.entry import Entry, parent_of
from monarch_sync.tree.manifest import Manifest

_MAX_PATH_BYTES = 4095
_MAX_NAME_BYTES = 255
_MAX_CHAR_BYTES = 4


class OnDisk:
    """Looks at the files of a replica by their manifest paths; ``root`` is the replica's folder. It
    remembers which paths are real folders, until `forget` is called. ``disk``, ``store`` and
    ``stamps`` are those of the replica.
    """

    def __init__(self, root: str, disk: Disk, store: ContentStore, stamps: Stamps) -> None:
        self.root = root
        self.disk = disk
        self.store = store
        self.stamps = stamps
        #: The user of this process, who may open closed folders of their own.
        self._user = os.geteuid()
        #: The length of the longest manifest path that this file system takes.
        self._max_path_bytes = _MAX_PATH_BYTES - len(os.fsencode(f"{self.root}/"))
        #: Whether each folder, and all folders above it, are real folders and not links.
        self._real = {"": True}
        #: The folders among these that belong to other users.
        self._foreign: set[str] = set()

    def forget(self) -> None:
        """Forget which paths are real folders, so that each is looked at again."""
        self._real = {"": True}
        self._foreign.clear()

    def is_there(self) -> bool:
        """Return whether the replica's folder itself exists; it may be a link to a folder."""
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
        """Raise ``PermissionError`` if a plan would write to a folder that we may not write to
        because another user owns it.

        Call it before the commit, which could not be completed otherwise. Closed folders of our own
        user are no problem, because the commit opens them.
        """
        paths = [path for pair in plan.folders_moved for path in (*pair, f"{pair[0]}/..")]
        if plan.links or plan.removes:
            paths += [entry.path for part in (plan.links, plan.removes) for entry in part]
        for path in paths:
            self.is_real(parent_of(path))
        if not self._foreign:
            return
        paths += [entry.path for part in (plan.folders, plan.files) for entry in part]
        for folder in self._foreign & {parent_of(path) for path in paths}:
            path = f"{self.root}/{folder}".rstrip("/")
            if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
                reason = "this folder belongs to another user, and we may not write to it"
                raise PermissionError(errno.EACCES, reason, path)

    def check_short(self, plan: SyncPlan, new: Manifest) -> None:
        """Raise ``OSError`` if a plan makes a path that is too long for this file system. A whole
        new folder could still be moved to such a path, but its files could never be deleted."""
        for part in (plan.folders, plan.files, plan.links):
            for entry in part:
                self._check_path(entry.path)
        for old_path, new_path in plan.folders_moved:
            if len(os.fsencode(new_path)) <= len(os.fsencode(old_path)):
                continue  # Its content has room at the old path, so it has room here.
            for folder, node in new.folder(new_path).walk(new_path):
                if (len(folder) + 1 + _MAX_NAME_BYTES) * _MAX_CHAR_BYTES > self._max_path_bytes:
                    for name in node.children:
                        self._check_path(f"{folder}/{name}")

    def _check_path(self, path: str) -> None:
        if len(path) * _MAX_CHAR_BYTES <= self._max_path_bytes:
            return  # It is short enough, however many bytes its characters have.
        if len(os.fsencode(path)) > self._max_path_bytes:
            reason = os.strerror(errno.ENAMETOOLONG)
            raise OSError(errno.ENAMETOOLONG, reason, f"{self.root}/{path}")

    def check_unmounted(self, plan: SyncPlan) -> None:
        """Raise ``OSError`` if a plan would replace or delete a mount point: the system does not
        allow that. A folder that is a mount point may stay a folder.

        Call it before the commit, which could not be completed otherwise.
        """
        mounts = mounted_inside(self.root)
        if not mounts:
            return
        removed = [entry for entry in plan.removes if not entry.is_dir]
        for entry in (*removed, *plan.files, *plan.links, *plan.folders):
            if entry.path in mounts and (entry in removed or not self._is_already(entry)):
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
        status = lstat(full)
        return status, None if status is None else self.stamps.digest_of(full, status)

    def find(self, digest: bytes, path: str | None) -> tuple[str, os.stat_result] | None:
        """Return (path, status) of a file on this host that has the content ``digest``. It is the
        file at ``path``, or a file in the store; None if neither has this content.
        """
        if path is not None:
            status, digest_there = self.look(path)
            if status is not None and digest_there == digest:
                return f"{self.root}/{path}", status
        return self.store.find(digest)
