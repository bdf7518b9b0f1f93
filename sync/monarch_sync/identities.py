"""Identities: whether the folders of a workspace are still the ones that were looked at last.

A mount point whose disk was unmounted is a folder like any other, and an empty one: to push it
would empty the hosts. What tells it from a folder whose last file was deleted is that it is another
folder. One that is another and holds something may be: a fresh clone, a remounted disk.
"""

from __future__ import annotations

import os

from monarch_sync.errors import WorkspaceMissing
from monarch_sync.workspace import Folder

__all__ = ["Identities"]

_UNMOUNTED = (
    "is empty, and another folder than before (has a disk been unmounted? one that is meant to be "
    "empty needs a file in it)"
)


class Identities:
    """Of the folders of a workspace, as they were when they were checked last."""

    def __init__(self) -> None:
        self._known: dict[Folder, tuple[int, int]] = {}

    def check(self, folder: Folder) -> None:
        """As `Folder.check`; raises `WorkspaceMissing` also where the folder has given way to
        another one, which is empty."""
        folder.check()
        try:
            status = os.stat(folder.local)
            now = status.st_dev, status.st_ino
            known = self._known.get(folder, now)
            if now != known and not os.listdir(folder.local):
                raise WorkspaceMissing(str(folder.local), _UNMOUNTED)
        except OSError as error:
            raise WorkspaceMissing(str(folder.local), f"went away: {error.strerror}") from None
        self._known[folder] = now
