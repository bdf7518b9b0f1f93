"""Outer rules: what decides, from outside a workspace's folders, which of their files belong to it.

Rule files of the folders above, the repository's ``info/exclude``, the user's own, and what git
tracks. They lie where no watch is, so they are looked at when somebody asks: a stat each.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from monarch_sync.git_index import find_git_dir, tracked_paths
from monarch_sync.ignore import is_wanted, outer_rule_files

__all__ = ["OuterRules"]

_MAX_PATHS = 2000
_Stamp = tuple[int, int, int] | None


class OuterRules:
    """Of one workspace folder, as they were when last looked at."""

    def __init__(self, folder: Path, patterns: Sequence[str]) -> None:
        self._folder = folder
        self._patterns = patterns
        self._files = outer_rule_files(folder)
        self._stamps = self._look()
        found = find_git_dir(str(folder))
        self._top, self._git_dir = found or ("", "")
        self._index_stamp = _stamp(f"{self._git_dir}/index")
        self._tracked = self._read_index()

    def have_changed(self) -> bool:
        """Whether all may be otherwise than at the last look."""
        found = find_git_dir(str(self._folder))
        if (found or ("", "")) != (self._top, self._git_dir) or self._look() != self._stamps:
            return True
        if not self._git_dir:
            return False
        stamp = _stamp(f"{self._git_dir}/index")
        # One that can be read again may bear the same stamp.
        if stamp == self._index_stamp and self._tracked is not None:
            return False
        # Git writes its index at every `git status`. What it tracks says little: it counts only
        # for what rules leave out.
        before = self._tracked
        self._index_stamp, self._tracked = stamp, self._read_index()
        if before is None or self._tracked is None:
            return before is not self._tracked
        return self._matters(before ^ self._tracked)

    def _matters(self, paths: frozenset[str]) -> bool:
        prefix = _prefix(self._folder, self._top)
        inside = [path[len(prefix) :] for path in paths if path.startswith(prefix)]
        if len(inside) > _MAX_PATHS:
            return True
        seen: dict[str, frozenset[str]] = {}
        return any(
            os.path.lexists(self._folder / path)
            and not is_wanted(self._folder, self._patterns, path, seen)
            for path in inside
        )

    def _read_index(self) -> frozenset[str] | None:
        """What git tracks; ``None`` where that is not known."""
        try:
            return tracked_paths(self._git_dir) if self._git_dir else frozenset()
        except OSError:
            return None

    def _look(self) -> list[_Stamp]:
        return [_stamp(path) for path in self._files]


def _prefix(folder: Path, top: str) -> str:
    return "" if str(folder) == top else f"{folder.relative_to(top)}/"


def _stamp(path: str) -> _Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
