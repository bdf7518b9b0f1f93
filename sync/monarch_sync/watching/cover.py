"""Cover: which folders of one workspace folder are watched, according to the ignore rules.

A new folder is watched first and listed after that, again and again until the list has no new
folder. So whatever is written meanwhile is either listed or raises an event. In a folder that rules
leave out, only the folders above files that git tracks are watched; of a virtual environment only
its top folder, whose events show when it is no environment any more.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence

from monarch_sync.ignoring.ignore import (
    RULE_FILES,
    is_environment,
    is_wanted,
    judges_alike,
    walk_kinds,
)
from monarch_sync.ignoring.tracked import Tracked
from monarch_sync.mounts import mounted_inside
from monarch_sync.watching.file_system import tells_all
from monarch_sync.watching.watched_folders import WatchedFolders
from monarch_sync.workspace import Folder

_TICK_NS = 20_000_000


class CannotWatch(Exception):
    """Raised if events would not report every change; the text says why."""

    @classmethod
    def untold(cls, path: str) -> CannotWatch:
        return cls(f"the file system of {path} does not tell of all changes")


class Cover:
    """Watches one folder of a workspace, and those folders in it that belong to the workspace.

    The watches are kept in ``watched``. Raises ``OSError`` if a folder cannot be watched, and
    ``CannotWatch`` if the file system does not report every change.
    """

    def __init__(self, folder: Folder, patterns: Sequence[str], watched: WatchedFolders) -> None:
        self.root = str(folder.local)
        if not tells_all(self.root):
            raise CannotWatch.untold(self.root)
        self._folder = folder
        self._patterns = patterns
        self._watched = watched
        #: Folders that could not be listed.
        self._closed: set[str] = set()
        #: Virtual environments, of which only the top folder is watched.
        self._environments: set[str] = set()
        #: What git tracks although rules leave it out; None if that is not known.
        self._tracked: Tracked | None = None
        #: Whether a folder that has appeared contains a rule file.
        self.has_new_rules = False
        #: The mount points inside, and the identity of the folder, when the watch began.
        self._mounted = mounted_inside(self.root)
        watched.add_root(self.root)
        self._identity = _identity(self.root)

    @property
    def is_same(self) -> bool:
        """Whether the folder, and the disks mounted inside it, are the same as when the watch
        began."""
        return _identity(self.root) == self._identity and mounted_inside(self.root) == self._mounted

    @property
    def is_open_now(self) -> bool:
        """Whether a folder that could not be listed before can be opened now. There may be no event
        for such a change.
        """
        return any(map(self._is_open, self._closed))

    def begin(self) -> None:
        """Watch the whole folder."""
        self._cover("")

    def take_in(self, parent: str, relatives: Iterable[str]) -> None:
        """Watch new folders right inside ``parent``, if they belong to the workspace."""
        if parent in self._environments:
            return
        tracked = self._tracked
        parents = tracked.parents if tracked is not None else frozenset()
        wanted: set[str] = set()
        # Rules may leave out the parent, which is watched because git tracks files in it.
        if parent not in parents or is_wanted(self._folder.local, self._patterns, parent, {}):
            wanted.update(path for path, _ in self._walk(parent, depth=1))
        for relative in relatives:
            if relative in wanted:
                self._watched.add(self.root, relative)
                self._cover(relative)
            elif relative in self._environments:
                self._watched.add(self.root, relative)
            if tracked is not None and relative in parents:
                while sum(
                    self._watched.add(self.root, folder) for folder in tracked.folders(relative)
                ):
                    pass

    def is_plain(self, old: str, new: str) -> bool:
        """Return whether the ignore rules give the same results for a renamed folder and its
        content under the old name as under the new. False if that is uncertain.
        """
        tracked = self._tracked
        if tracked is not None and (tracked.below(old) or tracked.below(new)):
            return False  # Some of its folders may not be watched.
        if old in self._environments:
            return False
        uses_git = self._folder.follows_git
        return judges_alike(self._folder.local, self._patterns, old, new, uses_git=uses_git)

    def _cover(self, below: str) -> None:
        """Watch the folder ``below`` and the folders inside it. They are listed again and again
        until a listing finds no new folder.
        """
        while True:
            began_ns = time.time_ns() - _TICK_NS
            youngest_ns, is_new = 0, False
            for relative, status in self._folders_inside(below):
                changed_ns = max(status.st_mtime_ns, status.st_ctime_ns)
                youngest_ns = max(youngest_ns, changed_ns)
                is_new |= self._watched.add(self.root, relative)
            # A file may have been written to while we listed, before its folder was watched.
            if not is_new or not (below or youngest_ns >= began_ns):
                return

    def _folders_inside(self, below: str) -> Iterator[tuple[str, os.stat_result]]:
        listed = dict(self._walk(below))
        if below and any(path.rpartition("/")[2] in RULE_FILES for path in listed):
            self.has_new_rules = True
        if not below and self._folder.follows_git:
            with contextlib.suppress(OSError):  # The rules tell when it can be read again.
                tracked = self._tracked = Tracked(self._folder, self._patterns, listed)
                listed.update(dict.fromkeys(tracked.folders(), True))
                parents = sorted(tracked.parents)
                self._environments.update(w for w in parents if is_environment(f"{self.root}/{w}"))
        listed.update(dict.fromkeys(self._environments, True))
        for relative, is_dir in listed.items():
            if not is_dir:
                continue
            path = f"{self.root}/{relative}"
            try:
                status = os.lstat(path)
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode):
                if status.st_dev != self._identity[0] and not tells_all(path):
                    raise CannotWatch.untold(path)
                yield relative, status

    def _walk(self, below: str, depth: int | None = None) -> Iterator[tuple[str, bool]]:
        def note(relative: str, error: OSError) -> None:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                self._closed.add(relative)

        return walk_kinds(
            self._folder.local,
            self._patterns,
            below,
            depth,
            on_error=note,
            on_environment=self._environments.add,
            uses_git=self._folder.follows_git,
        )

    def _is_open(self, relative: str) -> bool:
        errors: list[str] = []
        listing = walk_kinds(
            self._folder.local,
            self._patterns,
            relative,
            depth=1,
            on_error=lambda at, error: errors.append(at),
            uses_git=self._folder.follows_git,
        )
        list(listing)
        return not errors


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino
