"""What the author could not read: it is not gone, so it stays as the hosts have it.

A file or folder that is there and cannot be read (no permission, a disk that fails, a mount that
went stale) says nothing of what is in it. To leave it out would delete it on every host. Nor does
anybody know what belongs to a folder whose rules, or whose git index, cannot be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from monarch_sync.entry import Entry, parent_of
from monarch_sync.manifest import Manifest
from monarch_sync.report import Problem

__all__ = ["ROOT", "filled", "listing_fault", "tracking_fault"]

ROOT = "."  # the replica's root, as a problem names it
_RULES = (".gitignore", ".monarchignore")


def filled(
    manifest: Manifest, problems: Sequence[Problem], base: Manifest
) -> tuple[Manifest, list[Problem]]:
    """``manifest`` with what ``base`` has where it could not be read; and the problems, which say
    now of what that is so.

    Nothing else that stands there gives way: another folder of the workspace may land inside.
    """
    kept: dict[str, Entry] = {}
    told: list[Problem] = []
    for problem in problems:
        inside = list(_held(base, problem.path)) if problem.is_unreadable else []
        told.append(replace(problem, is_kept=bool(inside)))
        for entry in inside:
            above = parent_of(entry.path)
            folder = kept.get(above) or manifest.get(above)
            has_place = not above or (folder is not None and folder.is_dir)
            if has_place and entry.path not in manifest:
                kept[entry.path] = entry
    return (manifest.replace(kept.values()) if kept else manifest), told


def listing_fault(error: OSError) -> str:
    """Why what is in a folder is not known, when `walk` met this error."""
    name, why = os.path.basename(error.filename or ""), error.strerror or error
    return f"its {name} cannot be read: {why}" if name in _RULES else f"cannot be listed: {why}"


def tracking_fault(error: OSError) -> str:
    """Why it is not known what git tracks in a folder."""
    return (
        f"the git index cannot be read ({error.strerror or error}), so nobody knows what git "
        "tracks of what rules leave out"
    )


def _held(base: Manifest, path: str) -> Iterator[Entry]:
    """What a manifest has at a path and in it, folders before what is in them."""
    inside = base.below("" if path == ROOT else path)
    entries = (base.get(one) for one in (path, *inside))
    return (entry for entry in entries if entry is not None)
