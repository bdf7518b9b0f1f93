"""Outer rules: what decides, from outside a workspace's folders, which of their files belong to it.

Rule files of the folders above, the repository's ``info/exclude``, the user's own, and what git
tracks. They lie where no watch is, so they are looked at when somebody asks: a stat each.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from monarch_sync.git_index import find_git_dir, tracked_paths
from monarch_sync.ignore import walk

__all__ = ["OuterRules"]

_NAMES = (".gitignore", ".monarchignore")
_MAX_FOLDERS = 200
_EXCLUDES = re.compile(rb"^\s*excludesfile\s*=\s*\"?([^\"\n]+)", re.IGNORECASE | re.MULTILINE)

_Stamp = tuple[int, int, int] | None


class OuterRules:
    """Of one workspace folder, as they were when last looked at."""

    def __init__(self, folder: Path, patterns: Sequence[str]) -> None:
        self._folder = folder
        self._patterns = patterns
        self._files = _rule_files(folder)
        self._stamps = self._look()
        found = find_git_dir(str(folder))
        self._top, self._git_dir = found or ("", "")
        self._index_stamp = _stamp(f"{self._git_dir}/index")
        self._tracked = self._read_index()

    @property
    def lock(self) -> str:
        """The file that is there while git is at work; "" without a repository."""
        return f"{self._git_dir}/index.lock" if self._git_dir else ""

    def have_changed(self) -> bool:
        """Whether all may be otherwise than at the last look."""
        found = find_git_dir(str(self._folder))
        if (found or ("", "")) != (self._top, self._git_dir) or self._look() != self._stamps:
            return True
        if not self._git_dir:
            return False
        stamp = _stamp(f"{self._git_dir}/index")
        if stamp == self._index_stamp:
            return False
        # Git writes its index at every `git status`. What it tracks says little: it counts only
        # for what rules leave out.
        before = self._tracked
        self._index_stamp, self._tracked = stamp, self._read_index()
        return self._matters(before ^ self._tracked)

    def _matters(self, paths: frozenset[str]) -> bool:
        by_folder: dict[str, set[str]] = {}
        prefix = _prefix(self._folder, self._top)
        for path in paths:
            if path.startswith(prefix):
                relative = path[len(prefix) :]
                if os.path.lexists(self._folder / relative):
                    by_folder.setdefault(os.path.dirname(relative), set()).add(relative)
        if len(by_folder) > _MAX_FOLDERS:
            return True
        return any(
            not inside.issubset(walk(self._folder, self._patterns, parent, depth=1))
            for parent, inside in by_folder.items()
        )

    def _read_index(self) -> frozenset[str]:
        return tracked_paths(self._git_dir) if self._git_dir else frozenset()

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


def _rule_files(folder: Path) -> list[str]:
    files = [f"{above}/{name}" for above in folder.parents for name in _NAMES]
    found = find_git_dir(str(folder))
    if found is not None:
        files += [f"{found[1]}/info/exclude", f"{found[1]}/config"]
    home = os.path.expanduser("~")
    xdg = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    configs = [f"{home}/.gitconfig", f"{xdg}/git/config"]
    files += [*configs, f"{xdg}/git/ignore"]
    for config in configs:
        try:
            with open(config, "rb") as file:
                named = _EXCLUDES.findall(file.read())
        except OSError:
            continue
        files += [os.path.expanduser(os.fsdecode(name.strip())) for name in named]
    return files
