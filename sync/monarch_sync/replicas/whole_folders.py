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
    """The result of a look into a folder, with the folder's times at the look.

    ``node`` is the content that it was compared with and found to have; None: nothing but Python's
    bytecode. ``inner`` are its inner folders.
    """

    mtime_ns: int
    ctime_ns: int
    node: TreeNode | None
    inner: _Inner

    def is_of(self, node: TreeNode | None, status: os.stat_result) -> bool:
        """Return whether this look still holds: it was made for the content ``node``, and
        ``status``, the folder's present status, has the same times.
        """
        times = status.st_mtime_ns, status.st_ctime_ns
        return node is self.node and times == (self.mtime_ns, self.ctime_ns)


class WholeFolders:
    """Checks whether folders below ``root`` may be moved whole.

    A folder may be if the file system can rename it, and if it contains exactly what the manifest
    lists. The result is remembered until an entry is added to that folder or removed from it.

    ``full`` is a folder on the same file system that is never empty: a trial rename onto it fails
    without moving anything. ``tick_ns`` is the resolution of file times, as in ``Stamps``.
    """

    def __init__(self, root: str, full: str, tick_ns: int = TICK_NS) -> None:
        self._root = root
        self._full = full
        self._tick_ns = tick_ns
        self._looks: dict[tuple[int, int], _FolderLook] = {}

    def can_move(self, folder: str, old: Manifest) -> bool:
        """Return whether a folder may be moved whole: it can be renamed, and it has exactly the
        files and folders that ``old`` has in it.

        The contents of its files are not compared. What other programs have written into them moves
        along, and so does Python's bytecode.
        """
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
        while pending:
            path, below = pending.pop()
            status = lstat(path)
            if status is None:
                return False
            look = self._looks.get((status.st_dev, status.st_ino))
            if look is not None and look.is_of(below, status):
                inner: _Inner | None = look.inner
            else:
                inner = self._folders_in(path, below, status)
            if inner is None:
                return False
            pending += [(f"{path}/{name}", node) for name, node in inner]
        return True

    def _folders_in(
        self, path: str, node: TreeNode | None, status: os.stat_result
    ) -> _Inner | None:
        """Look into a folder, and return its inner folders if it has exactly the names of ``node``;
        else None.

        If ``node`` is None, the folder must have nothing but Python's bytecode. ``status`` is the
        folder's status, which is remembered with the result.
        """
        if not stat.S_ISDIR(status.st_mode):
            return None
        looked_ns = time.time_ns()
        inner = _look_into(path, node) if node is not None else _look_at_bytecode(path)
        # A folder that was changed within a tick may change again without another time.
        changed_ns = max(status.st_mtime_ns, status.st_ctime_ns)
        if inner is not None and changed_ns + self._tick_ns < looked_ns:
            if len(self._looks) >= _MAX_FOLDERS:
                self._looks.clear()
            self._looks[status.st_dev, status.st_ino] = _FolderLook(
                status.st_mtime_ns, status.st_ctime_ns, node, inner
            )
        return inner


def _look_into(path: str, node: TreeNode) -> _Inner | None:
    inner: _Inner = []
    num_found = 0
    with os.scandir(path) as listing:
        for item in listing:
            child = node.children.get(item.name)
            if child is None or child.entry is None:
                if item.name == _BYTECODE and item.is_dir(follow_symlinks=False):
                    inner.append((item.name, None))
                    continue
                return None
            num_found += 1
            kind = child.entry.kind
            if kind is EntryKind.FILE:
                if not item.is_file(follow_symlinks=False):
                    return None
            elif kind is EntryKind.LINK:
                if not item.is_symlink():
                    return None
            elif not item.is_dir(follow_symlinks=False):
                return None
            else:
                inner.append((item.name, child.node or EMPTY))
    return inner if num_found == len(node.children) else None


def _look_at_bytecode(path: str) -> _Inner | None:
    with os.scandir(path) as listing:
        is_all = all(e.name.endswith(".pyc") and e.is_file(follow_symlinks=False) for e in listing)
    return [] if is_all else None
