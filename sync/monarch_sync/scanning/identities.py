"""Identities: whether the folders of a workspace, and their inner folders, are still on the same
disks.

A mount point whose disk was unmounted is a folder like any other, and an empty one: to push it
would empty the hosts. Its device number differs, unlike that of a folder that lost its last file or
was made again. A folder on another disk that is not empty is accepted: the disk was mounted again.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from monarch_sync.errors import WorkspaceMissing
from monarch_sync.workspace import Folder

_UNMOUNTED = (
    "is empty, and on another disk than before (has one been unmounted? a folder that is meant to "
    "be empty needs a file in it)"
)


class Identities:
    """Remembers on which disk each folder of a workspace was at the last check."""

    def __init__(self) -> None:
        self._disks: dict[Folder, int] = {}

    def check(self, folder: Folder) -> None:
        """Check a folder as ``Folder.check`` does. Raise ``WorkspaceMissing`` also if the folder is
        empty and on another disk than at the last check, because then it was probably unmounted."""
        folder.check()
        try:
            disk = _disk_of(folder.local)
            old_disk = self._disks.get(folder, disk)
            if disk != old_disk and not os.listdir(folder.local):
                raise WorkspaceMissing(str(folder.local), _UNMOUNTED)
        except OSError as error:
            raise WorkspaceMissing(str(folder.local), f"went away: {error.strerror}") from None
        self._disks[folder] = disk


class InnerFolders:
    """Remembers the disks of inner folders, by manifest path, from one full scan to the next."""

    def __init__(self) -> None:
        self._disks: dict[str, int] = {}
        self._old_disks: dict[str, int] = {}

    def begin(self) -> None:
        """Begin a full scan. A folder that is not checked during this scan is forgotten when the
        next one begins."""
        self._old_disks, self._disks = self._disks, {}

    def check(self, path: str, local: str, disk: int) -> None:
        """Note that a folder is on ``disk`` now. Raise ``OSError`` if the folder is empty and was
        on another disk at the last check, because then it was probably unmounted.
        """
        old_disk = self._disks.get(path) or self._old_disks.get(path, disk)
        self._disks[path] = old_disk
        if disk != old_disk:
            if not os.listdir(local):
                raise OSError(errno.ENODEV, _UNMOUNTED, local)
            self._disks[path] = disk


def _disk_of(folder: Path) -> int:
    return os.stat(folder).st_dev
