"""Identities: whether the folders of a workspace are still on the disks that they were on.

A mount point whose disk was unmounted is a folder like any other, and an empty one: to push it
would empty the hosts. What tells it from a folder whose last file was deleted, or that was made
anew, is that it lies on another disk. One that does and holds something may be: a remounted disk.
"""

from __future__ import annotations

import os
from pathlib import Path

from monarch_sync.errors import WorkspaceMissing
from monarch_sync.workspace import Folder

__all__ = ["Identities"]

_UNMOUNTED = (
    "is empty, and on another disk than before (has one been unmounted? a folder that is meant to "
    "be empty needs a file in it)"
)


class Identities:
    """Of the folders of a workspace, as they were when they were checked last."""

    def __init__(self) -> None:
        self._known: dict[Folder, int] = {}

    def check(self, folder: Folder) -> None:
        """As `Folder.check`; raises `WorkspaceMissing` also where the folder has given way to
        one on another disk, which is empty."""
        folder.check()
        try:
            now = _disk_of(folder.local)
            known = self._known.get(folder, now)
            if now != known and not os.listdir(folder.local):
                raise WorkspaceMissing(str(folder.local), _UNMOUNTED)
        except OSError as error:
            raise WorkspaceMissing(str(folder.local), f"went away: {error.strerror}") from None
        self._known[folder] = now


def _disk_of(folder: Path) -> int:
    return os.stat(folder).st_dev
