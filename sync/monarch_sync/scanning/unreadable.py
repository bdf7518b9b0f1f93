"""Paths that the author could not read: they are not deleted, so hosts keep what they have.

A file or folder may exist and be unreadable (no permission, a failing disk, a stale mount). Nothing
is known of its content then, but leaving it out would delete it on every host. Likewise unknown is
the content of a folder whose rules, or whose git index, cannot be read.

If a folder around it was renamed meanwhile, hosts have it under the old name. The readable entries
of that folder show which name that was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from monarch_sync.report import Problem
from monarch_sync.tree.entry import Entry, folders_above, parent_of, path_fault, target_fault
from monarch_sync.tree.manifest import Manifest

ROOT = "."  # the replica's root, as a problem names it
_RULES = (".gitignore", ".monarchignore")


def filled(
    manifest: Manifest, problems: Sequence[Problem], base: Manifest
) -> tuple[Manifest, list[Problem]]:
    """Return ``manifest`` with the entries that ``base`` has at unreadable paths, and the problems.

    In each returned problem, ``is_kept`` says whether ``base`` had an entry for its path. An entry
    of ``manifest`` is never replaced: another folder of the workspace may land inside an unreadable
    folder.
    """
    kept: dict[str, Entry] = {}
    marked: list[Problem] = []
    closed = {problem.path for problem in problems if problem.is_unreadable}
    for problem in problems:
        inside: list[Entry] = []
        if problem.is_unreadable:
            inside = list(_entries_in(base, problem.path)) or _moved(
                problem.path, manifest, base, closed
            )
        marked.append(replace(problem, is_kept=bool(inside)))
        for entry in inside:
            above = parent_of(entry.path)
            folder = kept.get(above) or manifest.get(above)
            has_place = not above or (folder is not None and folder.is_dir)
            if has_place and entry.path not in manifest:
                kept[entry.path] = entry
    return (manifest.replace(kept.values()) if kept else manifest), marked


def listing_fault(error: OSError) -> str:
    """Return a text that says why the content of a folder is not known. ``error`` is what `walk`
    got for the folder.
    """
    name, why = os.path.basename(error.filename or ""), error.strerror or error
    return f"its {name} cannot be read: {why}" if name in _RULES else f"cannot be listed: {why}"


def tracking_fault(error: OSError) -> str:
    """Return why it is not known what git tracks in a folder."""
    return (
        f"the git index cannot be read ({error.strerror or error}), so it is not known which "
        "files git tracks although rules leave them out"
    )


def _moved(path: str, manifest: Manifest, base: Manifest, closed: set[str]) -> list[Entry]:
    """Return the entries of ``base`` for a path that is inside a renamed folder. ``base`` has the
    folder under its old name; the entries are returned with the new name.

    ``closed`` are all unreadable paths. Empty if the folder's old name is not certain.
    """
    for above in reversed(list(folders_above(path))):
        if above in base or above not in manifest:
            continue
        old_name = _old_name_of(above, path[len(above) :], manifest, base, closed)
        if old_name:
            entries = _entries_in(base, old_name + path[len(above) :])
            moved = (structs.replace(e, path=above + e.path[len(old_name) :]) for e in entries)
            return [entry for entry in moved if _is_fit(entry)]
    return []


def _old_name_of(
    folder: str, inside: str, manifest: Manifest, base: Manifest, closed: set[str]
) -> str:
    """Return the name under which ``base`` has a folder that is new in ``manifest``; "" if that is
    not certain.

    It is the folder of ``base`` that most of the folder's files came from. If the folder has no
    files, it is the only folder of ``base`` that has the path ``inside``. ``closed`` are all
    unreadable paths.
    """
    alike: dict[str, int] = {}
    for entry in base:
        old = entry.path + inside
        if entry.is_dir and old in base and old not in manifest and not _is_in(old, closed):
            alike[entry.path] = 0
    files = list(manifest.files_below(folder))
    for old_name in alike:
        for path in files:
            old_entry, new_entry = base.get(old_name + path[len(folder) :]), manifest.get(path)
            if old_entry is not None and new_entry is not None and old_entry.path not in manifest:
                alike[old_name] += old_entry.digest == new_entry.digest
    best = max(alike.values(), default=0)
    best_names = [old_name for old_name, num in alike.items() if num == best]
    return best_names[0] if len(best_names) == 1 and (best or not files) else ""


def _is_fit(entry: Entry) -> bool:
    """Return whether an entry is valid at its path. An entry that was moved may have too long a
    path, or be a link that leads outside now."""
    if path_fault(entry.path):
        return False
    return not entry.is_link or not target_fault(entry.path, entry.target)


def _is_in(path: str, folders: set[str]) -> bool:
    return path in folders or not folders.isdisjoint(folders_above(path))


def _entries_in(base: Manifest, path: str) -> Iterator[Entry]:
    """Yield the entries of a manifest at a path and below it, folders before their content."""
    inside = base.below("" if path == ROOT else path)
    entries = (base.get(inner_path) for inner_path in (path, *inside))
    return (entry for entry in entries if entry is not None)
