"""Tracked: the files of a workspace's folder that git tracks although rules leave them out.

They are part of the workspace, unless we always leave them out. Files that do not exist at the
moment count, too: they may be restored, and then only a look at their own path shows it.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Container, Sequence

from monarch_sync.ignoring.git_index import find_git_dir, paths_below, tracked_paths
from monarch_sync.ignoring.ignore import is_wanted
from monarch_sync.tree.entry import folders_above
from monarch_sync.workspace import Folder


class Tracked:
    """The files of one folder that git tracks and that ``walk`` did not yield. ``listed`` are the
    paths that ``walk`` yielded. Paths are relative to the folder.

    ``parents`` are all folders above these files. Raises ``OSError`` if the git index cannot be
    read.
    """

    def __init__(self, folder: Folder, patterns: Sequence[str], listed: Container[str]) -> None:
        self._folder = folder.local
        self._patterns = patterns
        repository = find_git_dir(str(folder.local)) if folder.follows_git else None
        names: list[str] = []
        if repository is not None:
            top, git_dir = repository
            inside = paths_below(folder.local, top, tracked_paths(git_dir))
            names = [name for name in inside if name not in listed]
        self._paths = sorted(names)
        self.parents = frozenset(above for path in names for above in folders_above(path))

    def below(self, relative: str) -> list[str]:
        """Return the tracked paths, whether or not they exist, that are the path ``relative`` or
        inside it. "" means all tracked paths.
        """
        paths = self._paths
        if not relative:
            return paths
        # "0" comes right behind "/".
        first, last = (bisect_left(paths, f"{relative}{end}") for end in "/0")
        at = bisect_left(paths, relative)
        return [*paths[at : at + (paths[at : at + 1] == [relative])], *paths[first:last]]

    def there(self, relative: str = "") -> list[str]:
        """Return the tracked paths that exist and belong to the workspace, with the folders above
        them."""
        wanted: dict[str, frozenset[str]] = {}
        paths: dict[str, None] = {}
        for path in self.below(relative):
            # A folder in the place of a tracked file is not tracked.
            if self._is_ours(path, wanted) and not _is_dir(f"{self._folder}/{path}"):
                above = (at for at in folders_above(path) if _is_in(at, relative))
                paths.update(dict.fromkeys(above))
                paths[path] = None
        return list(paths)

    def folders(self, relative: str = "") -> list[str]:
        """Return the existing folders above tracked paths that belong to the workspace. Only the
        folder ``relative`` and folders inside it are returned.
        """
        wanted: dict[str, frozenset[str]] = {}
        parents = {above for path in self.below(relative) for above in folders_above(path)}
        inside = (parent for parent in sorted(parents) if _is_in(parent, relative))
        return [parent for parent in inside if self._is_ours(parent, wanted)]

    def _is_ours(self, path: str, wanted: dict[str, frozenset[str]]) -> bool:
        return is_wanted(self._folder, self._patterns, path, wanted, uses_git=False)


def _is_dir(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _is_in(path: str, folder: str) -> bool:
    return not folder or f"{path}/".startswith(f"{folder}/")
