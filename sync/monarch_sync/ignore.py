"""Which paths are left out of a workspace.

Git's rules exactly, by the same Rust crate that ripgrep uses: nested and negated `.gitignore`,
`info/exclude`; and `.monarchignore` in the same syntax. A file that git tracks although it is
ignored comes along. Never taken: `.git`, `__pycache__`, compiled Python, virtual environments,
our own `.monarch`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import ignore
from ignore.overrides import OverrideBuilder

from monarch_sync.git_index import find_git_dir, tracked_paths

__all__ = ["tracked_files", "walk"]

_NEVER = (".git", "__pycache__", "*.pyc", "*.pyo", ".monarch")
_IGNORE_FILE = ".monarchignore"


def walk(folder: Path, patterns: Sequence[str] = (), depth: int | None = None) -> Iterator[str]:
    """Paths below ``folder`` that belong to a workspace, relative to it, folders before content.

    ``patterns`` are further ones to leave out, in `.gitignore` syntax. ``depth`` 1 looks at the
    folder's own entries only; rules of the folders above count all the same.
    """
    root = str(folder)
    builder = ignore.WalkBuilder(folder)
    builder.hidden(False)
    builder.ignore(False)
    builder.git_global(False)
    builder.require_git(False)
    builder.add_custom_ignore_filename(_IGNORE_FILE)
    overrides = OverrideBuilder(folder)
    for pattern in (*_NEVER, *patterns):
        overrides.add(f"!{pattern}")
    builder.overrides(overrides.build())
    if depth is not None:
        builder.max_depth(depth)
    environments: tuple[str, ...] = ()
    walker = builder.build()
    while True:
        try:
            entry = next(walker)
        except StopIteration:
            return
        except (ignore.Error, ignore.IOError):
            continue  # Gone or unreadable meanwhile; the scan finds out about what it lists.
        path = os.fspath(entry.path())
        relative = path[len(root) + 1 :]
        if not relative or environments and relative.startswith(environments):
            continue
        if os.path.exists(f"{path}/pyvenv.cfg"):
            environments = (*environments, relative + "/")
        else:
            yield relative


def tracked_files(folder: Path) -> list[str]:
    """Paths that git tracks below ``folder``, relative to it; none outside of a repository."""
    found = find_git_dir(str(folder))
    if found is None:
        return []
    top, git_dir = found
    prefix = "" if top == str(folder) else f"{folder.relative_to(top)}/"
    return [name[len(prefix) :] for name in tracked_paths(git_dir) if name.startswith(prefix)]
