"""Outer rules: rule files and git indexes outside of a workspace's folders that apply to them.

They are the rule files of the folders above, the repository's ``info/exclude``, the user's own, and
the git index. No watch covers them, so each question to the watch also checks them: a stat of each
file, and of each folder above, whose times show whether a file was added or removed there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from monarch_sync.ignoring.git_index import git_dir_of, paths_below, tracked_paths
from monarch_sync.ignoring.ignore import OUTER_NAMES, is_wanted, other_rule_files
from monarch_sync.watching.file_system import tells_all

_DOT_GIT = ".git"
_MAX_PATHS = 2000
_TICK_NS = 3_000_000_000  # there are file systems that count in steps of two seconds
_Stamp = tuple[int, int, int] | None


class _OuterFolder:
    """A folder at or above a workspace folder. ``names``: which of the names that matter (rule
    files and ``.git``) exist in it, as of the last look.
    """

    def __init__(self, folder: str, names: Sequence[str], tick_ns: int) -> None:
        self.folder = folder
        self.names = frozenset[str]()
        self._all = names
        self._tick_ns = tick_ns
        self._tells = tells_all(folder)
        self._status: tuple[int, int, int, int] | None = None

    def look(self) -> None:
        """Find out which of the folder's names (rule files and ``.git``) exist now. Nothing is done
        if the folder has not changed since the last look.
        """
        looked_ns = time.time_ns()
        try:
            stat_result = os.stat(self.folder)
        except OSError:
            stat_result = None
        status = stat_result and (
            stat_result.st_dev,
            stat_result.st_ino,
            stat_result.st_mtime_ns,
            stat_result.st_ctime_ns,
        )
        if status is not None and status == self._status:
            return
        self.names = frozenset(n for n in self._all if os.path.lexists(f"{self.folder}/{n}"))
        # A folder that was changed within a tick may change again without another time.
        is_old = (
            stat_result is not None
            and max(stat_result.st_mtime_ns, stat_result.st_ctime_ns) + self._tick_ns < looked_ns
        )
        self._status = status if self._tells and is_old else None


class OuterRules:
    """The ignore rules that apply to one workspace folder but are outside of it, as they were at
    the last look.

    If a folder's last change was less than ``tick_ns`` before the look, the folder is looked into
    again, because its next change may get the same time.
    """

    def __init__(self, folder: Path, patterns: Sequence[str], tick_ns: int = _TICK_NS) -> None:
        self._folder = folder
        self._patterns = patterns
        self._folders = [
            _OuterFolder(str(folder), (_DOT_GIT,), tick_ns),
            *(
                _OuterFolder(str(above), (_DOT_GIT, *OUTER_NAMES), tick_ns)
                for above in folder.parents
            ),
        ]
        self._look_at_folders()
        self._top, self._git_dir = self._find_git_dir()
        self._other_files = other_rule_files(self._git_dir or None)
        self._stamps = self._look()
        self._index_stamp = _stamp(f"{self._git_dir}/index")
        self._tracked = self._read_index()

    def have_changed(self) -> bool:
        """Return whether the outer rules may have changed since the last look."""
        self._look_at_folders()
        if self._find_git_dir() != (self._top, self._git_dir) or self._look() != self._stamps:
            return True
        if not self._git_dir:
            return False
        stamp = _stamp(f"{self._git_dir}/index")
        # An index that could not be read and now can may have the same stamp.
        if stamp == self._index_stamp and self._tracked is not None:
            return False
        # Git writes its index at every `git status`, and tracked paths matter only if rules leave
        # them out.
        old_tracked = self._tracked
        self._index_stamp, self._tracked = stamp, self._read_index()
        if old_tracked is None or self._tracked is None:
            return old_tracked is not self._tracked
        return self._matters(old_tracked ^ self._tracked)

    def _matters(self, paths: frozenset[str]) -> bool:
        inside = paths_below(self._folder, self._top, paths)
        if len(inside) > _MAX_PATHS:
            return True
        seen: dict[str, frozenset[str]] = {}
        return any(
            os.path.lexists(self._folder / path)
            and not is_wanted(self._folder, self._patterns, path, seen)
            for path in inside
        )

    def _read_index(self) -> frozenset[str] | None:
        """Return the paths that git tracks; None if it cannot be found out which these are."""
        try:
            return tracked_paths(self._git_dir) if self._git_dir else frozenset()
        except OSError:
            return None

    def _look_at_folders(self) -> None:
        for level in self._folders:
            level.look()

    def _find_git_dir(self) -> tuple[str, str]:
        """Return (folder, git directory) of the repository that contains the workspace folder; ("",
        "") if there is none. The folders are those seen by the last look.
        """
        for level in self._folders:
            if _DOT_GIT in level.names and (git_dir := git_dir_of(level.folder)) is not None:
                return level.folder, git_dir
        return "", ""

    def _look(self) -> dict[str, _Stamp]:
        names = ((level.folder, name) for level in self._folders for name in level.names)
        rules = [f"{folder}/{name}" for folder, name in names if name != _DOT_GIT]
        return {path: stamp for path in (*rules, *self._other_files) if (stamp := _stamp(path))}


def _stamp(path: str) -> _Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
