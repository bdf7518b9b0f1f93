"""Which folders on a host may be moved whole, with all their content."""

from __future__ import annotations

import errno
import os
import stat
import time
from typing import NamedTuple

from monarch_sync.content.stamps import TICK_NS, lstat
from monarch_sync.tree.entry import EntryKind
from monarch_sync.tree.manifest import Manifest
from monarch_sync.tree.tree import EMPTY, TreeNode

_MAX_FOLDERS = 100_000
_BYTECODE = "__pycache__"

_Inner = list[tuple[str, "TreeNode | None"]]


class _FolderLook(NamedTuple):
    """A folder was found to have the content ``node`` (None: Python's bytecode) when it had these
    times. ``inner``: its inner folders."""

    mtime_ns: int
    ctime_ns: int
    node: TreeNode | None
    inner: _Inner


class WholeFolders:
    """Checks whether folders may be moved whole; remembers each check until an entry of the folder
    comes or goes. ``full``: a folder on the same file system that is never empty.
    ``tick_ns``: as in `Stamps`."""

    def __init__(self, root: str, full: str, tick_ns: int = TICK_NS) -> None:
        self._root = root
        self._full = full
        self._tick_ns = tick_ns
        self._looks: dict[tuple[int, int], _FolderLook] = {}

    def can_move(self, folder: str, old: Manifest) -> bool:
        """Return whether a folder has exactly the names that the manifest says, so that it may be
        moved whole. Python's bytecode moves along, and so do other programs' changes to files of
        ours: they are overwritten no more than they would be at the old path."""
        return self.is_free(folder) and self.holds(folder, old.folder(folder))

    def is_free(self, folder: str) -> bool:
        """Return whether the file system can rename a folder.

        In a container, folders that came with the image cannot be renamed.
        """
        try:
            # Nothing can take the place of a folder that is not empty: this only asks.
            os.rename(f"{self._root}/{folder}", self._full)
        except OSError as error:
            return error.errno != errno.EXDEV
        return False

    def holds(self, folder: str, node: TreeNode) -> bool:
        """Return whether ``folder`` on disk has exactly the files and folders of ``node``."""
        at = self._root
        for part in folder.split("/"):
            at = f"{at}/{part}"
            if os.path.islink(at):
                return False
        pending: _Inner = [(at, node)]
        looks = self._looks
        while pending:
            path, below = pending.pop()
            status = lstat(path)
            if status is None:
                return False
            inner = None
            # Nearly always; a folder is looked at twice in a push.
            if (known := looks.get((status.st_dev, status.st_ino))) is not None:
                mtime_ns, ctime_ns, there, found = known
                if (
                    ctime_ns == status.st_ctime_ns
                    and mtime_ns == status.st_mtime_ns
                    and there is below
                ):
                    inner = found
            if inner is None:
                inner = self._folders_in(path, below, status)
            if inner is None:
                return False
            if inner:
                pending += [(f"{path}/{name}", node) for name, node in inner]
        return True

    def _folders_in(
        self, path: str, node: TreeNode | None, status: os.stat_result
    ) -> _Inner | None:
        """Return the inner folders of a folder that has the names of ``node``; None if it has
        not."""
        if not stat.S_ISDIR(status.st_mode):
            return None
        now = time.time_ns()
        inner = _look_into(path, node) if node is not None else _look_at_bytecode(path)
        # A file that was changed as late as this may change again and bear the same time.
        if inner is not None and max(status.st_mtime_ns, status.st_ctime_ns) + self._tick_ns < now:
            if len(self._looks) >= _MAX_FOLDERS:
                self._looks.clear()
            self._looks[status.st_dev, status.st_ino] = _FolderLook(
                status.st_mtime_ns, status.st_ctime_ns, node, inner
            )
        return inner


def _look_into(path: str, node: TreeNode) -> _Inner | None:
    inner: _Inner = []
    num_known = 0
    with os.scandir(path) as found:
        for one in found:
            child = node.children.get(one.name)
            if child is None or child.entry is None:
                if one.name == _BYTECODE and one.is_dir(follow_symlinks=False):
                    inner.append((one.name, None))
                    continue
                return None
            num_known += 1
            kind = child.entry.kind
            if kind is EntryKind.FILE:
                if not one.is_file(follow_symlinks=False):
                    return None
            elif kind is EntryKind.LINK:
                if not one.is_symlink():
                    return None
            elif not one.is_dir(follow_symlinks=False):
                return None
            else:
                inner.append((one.name, child.node or EMPTY))
    return inner if num_known == len(node.children) else None


def _look_at_bytecode(path: str) -> _Inner | None:
    with os.scandir(path) as found:
        is_all = all(e.name.endswith(".pyc") and e.is_file(follow_symlinks=False) for e in found)
    return [] if is_all else None
