"""Which paths are left out of a workspace.

Git's rules exactly, by the same Rust crate that ripgrep uses: nested and negated `.gitignore`,
`info/exclude`, the user's own `core.excludesFile`; and `.monarchignore` in the same syntax. A file
that git tracks although git's rules ignore it comes along. Never taken: `.git`, `__pycache__`,
compiled Python, virtual environments, our own `.monarch`, and what the workspace says to ignore.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

import ignore
from ignore.overrides import OverrideBuilder

from monarch_sync.git_index import find_git_dir, tracked_paths

__all__ = ["IGNORE_FILE", "NEVER", "tracked_though_ignored", "walk"]

NEVER = (".git", "__pycache__", "*.pyc", "*.pyo", ".monarch")
IGNORE_FILE = ".monarchignore"


def walk(
    folder: Path, patterns: Sequence[str] = (), below: str = "", depth: int | None = None
) -> Iterator[str]:
    """Paths that belong to a workspace, relative to its ``folder``, folders before content.

    ``patterns`` are further ones to leave out, in `.gitignore` syntax, relative to ``folder``.
    ``below`` looks only inside that folder of it, ``depth`` 1 at nothing deeper; rules of the
    folders above count all the same.
    """
    builder = _builder(folder, patterns, below)
    if depth is not None:
        builder.max_depth(depth)
    return _listed(builder, str(folder), below)


def _builder(folder: Path, patterns: Sequence[str], below: str) -> ignore.WalkBuilder:
    builder = ignore.WalkBuilder(folder / below)
    builder.hidden(False)
    builder.ignore(False)
    builder.require_git(False)
    builder.add_custom_ignore_filename(IGNORE_FILE)
    overrides = OverrideBuilder(folder)
    for pattern in (*NEVER, *patterns):
        overrides.add(f"!{pattern}")
    builder.overrides(overrides.build())
    return builder


def _listed(builder: ignore.WalkBuilder, root: str, below: str) -> Iterator[str]:
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
        if relative == below or (environments and relative.startswith(environments)):
            continue
        if os.path.exists(f"{path}/pyvenv.cfg"):
            environments = (*environments, relative + "/")
        else:
            yield relative


def tracked_though_ignored(
    folder: Path, patterns: Sequence[str], listed: Container[str]
) -> list[str]:
    """Paths that git tracks below ``folder`` although its own rules leave them out.

    ``listed``: what `walk` gave. Ours to leave out stays left out.
    """
    found = find_git_dir(str(folder))
    if found is None:
        return []
    top, git_dir = found
    prefix = "" if top == str(folder) else f"{folder.relative_to(top)}/"
    tracked = (name[len(prefix) :] for name in tracked_paths(git_dir) if name.startswith(prefix))
    left_out = [path for path in tracked if path not in listed]
    wanted: dict[str, frozenset[str]] = {}
    return [path for path in left_out if _is_wanted(folder, patterns, path, wanted)]


def _is_wanted(
    folder: Path, patterns: Sequence[str], path: str, wanted: dict[str, frozenset[str]]
) -> bool:
    """Whether a path is listed when git's rules do not count. ``wanted``: folders seen so far."""
    parent = path.rpartition("/")[0]
    if parent and not _is_wanted(folder, patterns, parent, wanted):
        return False
    if parent not in wanted:
        builder = _builder(folder, patterns, parent)
        builder.git_ignore(False)
        builder.git_exclude(False)
        builder.git_global(False)
        builder.max_depth(1)
        wanted[parent] = frozenset(_listed(builder, str(folder), parent))
    return path in wanted[parent]
