"""Identities: whether the folders of a workspace, and those inside, are still on the disks that
they were on.

A mount point whose disk was unmounted is a folder like any other, and an empty one: to push it
would empty the hosts. Its device number differs, unlike that of a folder that lost its last file or
was made anew. A folder on another disk that is not empty is accepted: a disk mounted again.
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
    """The disks of a workspace's folders, as they were when they were checked last."""

    def __init__(self) -> None:
        self._known: dict[Folder, int] = {}

    def check(self, folder: Folder) -> None:
        """As `Folder.check`; raises `WorkspaceMissing` also where an empty folder on another disk
        has taken the folder's place."""
        folder.check()
        try:
            now = _disk_of(folder.local)
            known = self._known.get(folder, now)
            if now != known and not os.listdir(folder.local):
                raise WorkspaceMissing(str(folder.local), _UNMOUNTED)
        except OSError as error:
            raise WorkspaceMissing(str(folder.local), f"went away: {error.strerror}") from None
        self._known[folder] = now


class InnerFolders:
    """The disks of inner folders, by manifest paths, from one full scan to the next."""

    def __init__(self) -> None:
        self._disks: dict[str, int] = {}
        self._before: dict[str, int] = {}

    def begin(self) -> None:
        """A look at everything begins: what it does not meet is forgotten at the next."""
        self._before, self._disks = self._disks, {}

    def check(self, path: str, local: str, disk: int) -> None:
        """Raise ``OSError`` for a folder, on ``disk`` now, that has given way to an empty one."""
        known = self._disks.get(path) or self._before.get(path, disk)
        self._disks[path] = known
        if disk != known:
            if not os.listdir(local):
                raise OSError(errno.ENODEV, _UNMOUNTED, local)
            self._disks[path] = disk


def _disk_of(folder: Path) -> int:
    return os.stat(folder).st_dev
