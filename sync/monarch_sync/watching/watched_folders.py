"""Watched folders: a tree of watches, and the paths that their events report as touched.

An event names a folder by the number of its watch, which stays the same when the folder, or one
above it, is renamed. So paths are not stored but read off the tree, and a renamed folder costs
nothing, however much is inside.

Nothing here knows which folders are wanted: `take_fresh` names new ones, for the watcher to `add`
them if they belong to the workspace.
"""

from __future__ import annotations

import os
import stat

from monarch_sync.tree.entry import folders_above, is_reserved
from monarch_sync.watching import inotify
from monarch_sync.watching.inotify import Inotify, InotifyEvent

_NEVER = frozenset({".git", "__pycache__"})
_ENDS = (".pyc", ".pyo")
_NOBODY = (0, "")


def is_never_taken(name: str) -> bool:
    """Return whether a file or folder of this name never belongs to a workspace."""
    return name in _NEVER or name.endswith(_ENDS) or is_reserved(name)


class _Node:
    __slots__ = ("children", "name", "number", "parent")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.parent: _Node | None = None
        self.children: dict[str, _Node] = {}


class WatchedFolders:
    """The watched folders as a tree, kept up to date by the events of one ``queue``."""

    def __init__(self, queue: Inotify) -> None:
        self._queue = queue
        #: The workspace's folders, as (path, node), by the number of their watch.
        self._roots: dict[int, tuple[str, _Node]] = {}
        #: All watched folders, by the number of their watch.
        self._by_number: dict[int, _Node] = {}
        #: Folders that have left their parent and not arrived yet, by the cookie of the event.
        self._moving: dict[int, _Node] = {}
        #: The cookie and the path of a folder that the last event saw leave.
        self._leaving = _NOBODY
        #: Touched paths, until the user of this class removes them.
        self.touched: set[str] = set()
        #: Folders among these that were only renamed, as (old, new). A path that changed inside a
        #: renamed folder is in ``touched`` too, under its new name.
        self.moves: list[tuple[str, str]] = []
        #: New folders that are not watched yet, as (parent, name).
        self._fresh: set[tuple[_Node, str]] = set()
        #: Files that a program is writing, with the time since when.
        self.written: dict[str, float] = {}
        #: Files that existed and are gone.
        self.vanished: set[str] = set()
        #: Whether events are missing or a root was replaced, so that all folders have to be watched
        #: and looked at again.
        self.is_lost = False

    def __len__(self) -> int:
        return len(self._by_number)

    def add_root(self, path: str) -> None:
        """Watch a workspace's folder. Raises ``OSError`` if the system cannot watch it."""
        number = self._queue.watch(path)
        if number not in self._by_number:
            node = self._by_number[number] = _Node(path, number)
            self._roots[number] = (path, node)

    def add(self, root: str, relative: str) -> bool:
        """Watch a folder inside a root; return whether it was not watched before.

        A folder that is gone, unreadable, or no folder any more is skipped. Raises ``OSError``
        where the system has no watches left.
        """
        above, _, name = relative.rpartition("/")
        parent = self._find(root, above)
        if parent is None:
            return False
        try:
            number = self._queue.watch(f"{root}/{relative}")
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return False
        node = self._by_number.get(number)
        if node is not None and node.parent is parent and node.name == name:
            return False
        if number in self._roots:
            return False  # A root inside another one keeps its own name.
        if node is not None:
            # Renamed, and its events are still to come: it is here already.
            self._detach(node)
        self._attach(parent, name, node or _Node(name, number))
        return True

    def take_fresh(self) -> set[str]:
        """Return the paths of folders that appeared since the last call and still exist."""
        fresh, self._fresh = self._fresh, set()
        paths = [(self._path(parent), name) for parent, name in fresh]
        return {f"{above}/{name}" for above, name in paths if above is not None}

    def take(self, events: list[InotifyEvent], now: float) -> None:
        """Take in ``events``, in their order, at the time ``now``. They must be all events that the
        queue has: a folder that left its parent, and arrived nowhere within these events, counts as
        moved out of the workspace.
        """
        for event in events:
            leaving = self._leaving
            self._take(event, now)
            if self._leaving is leaving:
                self._leaving = _NOBODY
        self._leaving = _NOBODY
        for node in self._moving.values():
            self._drop(node)  # Renamed to a place outside.
        self._moving.clear()

    def _take(self, event: InotifyEvent, now: float) -> None:
        mask = event.mask
        if mask & (inotify.OVERFLOW | inotify.UNMOUNT):
            self.is_lost = True
            return
        node = self._by_number.get(event.watch)
        if node is None:
            return
        if mask & inotify.IGNORED:
            self._forget(node)
        elif mask & (inotify.DELETE_SELF | inotify.MOVE_SELF) or not event.name:
            # The end of an inner folder is an event of its parent, too.
            self.is_lost = self.is_lost or event.watch in self._roots
        elif event.name == ".git":
            # A repository begins or ends here, and its rules with it. It is a file where it is a
            # worktree or a submodule.
            self.is_lost = self.is_lost or not mask & inotify.ATTRIB
        elif not is_never_taken(event.name) or mask & (inotify.MOVED_FROM | inotify.MOVED_TO):
            self._touch(node, event, now)

    def _touch(self, node: _Node, event: InotifyEvent, now: float) -> None:
        above = self._path(node)
        mask, name = event.mask, event.name
        path = f"{above}/{name}"
        if mask & inotify.IS_DIR:
            if not mask & inotify.ATTRIB:
                self._end_moves(path)
            self._touch_folder(node, event, path)
        elif above is None:
            return  # The folder is being moved; it is looked at with all its content.
        elif mask & inotify.CREATE:
            if _is_being_written(path):
                self.written.setdefault(path, now)
        elif mask & inotify.MODIFY:
            self.written.setdefault(path, now)
        elif not mask & inotify.ATTRIB:
            self.written.pop(path, None)
        if above is None or is_never_taken(name):
            return
        self.touched.add(path)
        if mask & (inotify.DELETE | inotify.MOVED_FROM):
            self.vanished.add(path)
        else:
            self.vanished.discard(path)

    def _touch_folder(self, parent: _Node, event: InotifyEvent, path: str) -> None:
        mask, name = event.mask, event.name
        child = parent.children.get(name)
        if mask & inotify.MOVED_FROM:
            # A folder that was touched before is not the one known by its name.
            self._leaving = event.cookie, "" if path in self.touched else path
            if child is not None:
                self._detach(child)
                self._moving[event.cookie] = child
        elif mask & inotify.DELETE:
            if child is not None:
                self._drop(child)
        elif mask & (inotify.CREATE | inotify.MOVED_TO):
            moved = self._moving.pop(event.cookie, None) if event.cookie else None
            if moved is not None and not is_never_taken(name):
                if child is not None and child is not moved:
                    self._drop(child)
                self._attach(parent, name, moved)
                if self._leaving[0] == event.cookie:
                    self._note_move(self._leaving[1], path)
            elif moved is not None:
                self._drop(moved)
            # Folders made in it while it moved may have no watch yet.
            self._fresh.add((parent, name))

    def _note_move(self, old: str, new: str) -> None:
        """Record that a folder was only renamed. It is not recorded if other touched paths, at or
        above the old or the new path, make that uncertain.

        The folder and all in it are watched, so every other change in it has an event of its own.
        """
        if not (old.startswith("/") and new.startswith("/")):
            return  # It was touched before, or its parent is being moved.
        other_paths = self.touched - {old}
        if any(path in other_paths for end in (old, new) for path in (end, *folders_above(end))):
            return
        self.touched |= {
            new + path[len(old) :] for path in other_paths if path.startswith(f"{old}/")
        }
        self.moves.append((old, new))

    def _end_moves(self, path: str) -> None:
        """Forget all noted moves if ``path``, where a folder has appeared or vanished, is the new
        path of a moved folder or above one.

        All touched folders are then looked at, the moved folders too.
        """
        for _, new in self.moves:
            if new == path or new.startswith(f"{path}/"):
                self.moves.clear()
                return

    def _find(self, root: str, relative: str) -> _Node | None:
        node = next((node for path, node in self._roots.values() if path == root), None)
        for name in relative.split("/") if relative else ():
            node = node.children.get(name) if node is not None else None
        return node

    def _path(self, node: _Node) -> str | None:
        """Return the present path of a folder; None if it has left its parent and not arrived
        elsewhere yet."""
        names: list[str] = []
        while node.parent is not None:
            names.append(node.name)
            node = node.parent
        if node.number not in self._roots:
            return None
        names.append(node.name)
        return "/".join(reversed(names))

    def _attach(self, parent: _Node, name: str, node: _Node) -> None:
        replaced = parent.children.get(name)
        if replaced is not None and replaced is not node:
            self._drop(replaced)
        node.name, node.parent = name, parent
        parent.children[name] = node
        self._by_number[node.number] = node

    def _detach(self, node: _Node) -> None:
        if node.parent is not None and node.parent.children.get(node.name) is node:
            del node.parent.children[node.name]
        node.parent = None

    def _forget(self, node: _Node) -> None:
        """Forget a folder whose watch the kernel has ended: the folder is gone."""
        if node.number in self._roots:
            self.is_lost = True
            return
        self._by_number.pop(node.number, None)
        self._detach(node)

    def _drop(self, node: _Node) -> None:
        """End the watches of a folder and of all folders inside it."""
        self._detach(node)
        nodes = [node]
        while nodes:
            dropped = nodes.pop()
            nodes += dropped.children.values()
            if self._by_number.pop(dropped.number, None) is not None:
                self._queue.unwatch(dropped.number)


def _is_being_written(path: str) -> bool:
    """Return whether a new file was opened for writing, so that an event will come when it is
    closed."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1
