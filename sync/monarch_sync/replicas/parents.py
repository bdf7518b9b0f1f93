"""The parent folders of the files that a commit writes: real folders that we may write to."""

from __future__ import annotations

import os
import stat

from monarch_sync.content.disk import Disk
from monarch_sync.content.stamps import lstat
from monarch_sync.replicas.conflict_copies import ConflictCopies
from monarch_sync.tree.entry import folders_above, parent_of


class ParentFolders:
    """The parent folders of one commit. ``sound``: folders that have been checked; ``opened``:
    folders that were closed to writing, and were opened for the commit."""

    def __init__(self, root: str, disk: Disk, conflicts: ConflictCopies) -> None:
        self._root = root
        self._disk = disk
        self._conflicts = conflicts
        self._user = os.geteuid()
        self._writable: set[str] = set()
        self.sound: set[str] = {""}
        self.opened: list[str] = []

    def make_sound(self, folder: str) -> None:
        """Make sure that ``folder`` and all above it are real folders inside the root."""
        if folder in self.sound:
            return
        self.make_sound(parent_of(folder))
        path = f"{self._root}/{folder}"
        status = lstat(path)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            self._conflicts.clear(folder, status)
            status = None
        if status is None:
            self._disk.make_folder(path)
        elif status.st_mode & 0o300 != 0o300 or status.st_uid != self._user:
            self.open(folder)
        self.sound.add(folder)

    def open(self, folder: str) -> None:
        """Make sure that we may write to an existing folder."""
        if folder in self.sound or folder in self._writable:
            return
        path = f"{self._root}/{folder}"
        if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
            self._disk.chmod(path, stat.S_IMODE(os.stat(path).st_mode) | 0o700)
            self.opened.append(folder)
        self._writable.add(folder)

    def leads_astray(self, name: str) -> bool:
        """Return whether a folder above ``name`` is a link, so that the path leads outside of our
        folder."""
        return any(os.path.islink(f"{self._root}/{folder}") for folder in folders_above(name))
