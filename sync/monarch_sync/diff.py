"""Plan: what turns one manifest into another. Pure; the replica carries it out.

The order in which a plan is carried out is fixed: folders that move, then what gives way (deepest
first), then folders (highest first), then files and links, then modes. A content that the old
state holds somewhere needs no bytes: the replica copies it from there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from monarch_sync.entry import Entry
from monarch_sync.manifest import Manifest

__all__ = ["Plan", "diff"]


@dataclass
class Plan:
    """Paths are manifest paths.

    ``removes`` are entries that give way (deleted, or replaced by another kind), deepest first;
    ``folders``, ``files``, ``links`` are to be made or replaced; ``modes`` only change their
    permission bits. ``moved`` tells, for a new file whose content the old state had, from where.
    ``folders_moved`` are whole folders that only have another name now, as (old, new); what is in
    them is in none of the others. They are first.
    """

    folders_moved: list[tuple[str, str]] = field(default_factory=list)
    removes: list[Entry] = field(default_factory=list)
    folders: list[Entry] = field(default_factory=list)
    files: list[Entry] = field(default_factory=list)
    links: list[Entry] = field(default_factory=list)
    modes: list[Entry] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        parts = (self.removes, self.folders, self.files, self.links, self.modes)
        return not (self.folders_moved or any(parts))

    def touched(self) -> list[str]:
        """Every path that this plan changes, each once, in order."""
        parts = (self.removes, self.folders, self.files, self.links, self.modes)
        return sorted({entry.path for part in parts for entry in part})


def diff(
    old: Manifest, new: Manifest, folders_moved: Sequence[tuple[str, str]] | None = None
) -> Plan:
    """What turns ``old`` into ``new``. ``folders_moved``: the folders to move whole, if it is not
    for the plan to find them."""
    changed = new.changed_paths(old)
    if folders_moved is None:
        folders_moved = find_moved_folders(old, new, changed)
    plan = Plan(folders_moved=list(folders_moved))
    for before_path, after_path in folders_moved:
        changed.difference_update(old.below(before_path), new.below(after_path))
        changed -= {before_path, after_path}
    for path in sorted(changed):
        before, after = old.get(path), new.get(path)
        if before is not None and (after is None or after.kind is not before.kind):
            plan.removes.append(before)
            before = None
        if after is None:
            continue
        if before is not None and _only_mode_differs(before, after):
            plan.modes.append(after)
        elif after.is_dir:
            plan.folders.append(after)
        elif after.is_link:
            plan.links.append(after)
        else:
            plan.files.append(after)
            source = old.path_of(after.digest)
            if source is not None and source != path:
                plan.moved[path] = source
    plan.removes.sort(key=lambda entry: entry.path.count("/"), reverse=True)
    plan.folders.sort(key=lambda entry: entry.path.count("/"))
    return plan


def find_moved_folders(
    old: Manifest, new: Manifest, changed: Collection[str]
) -> list[tuple[str, str]]:
    """Folders, as high up as can be, that are gone and equal to one that is new, inside and out."""
    gone: dict[bytes, str] = {}
    moved: list[tuple[str, str]] = []
    for path in changed:
        entry = old.get(path)
        if entry is not None and entry.is_file and new.get(path) is None:
            gone[entry.digest] = path
    if not gone:
        return moved
    for path in sorted(changed):
        entry = new.get(path)
        is_new_folder = entry is not None and entry.is_dir and old.get(path) is None
        inside = bool(moved) and path.startswith(f"{moved[-1][1]}/")
        if is_new_folder and not inside:
            source = _source_of(path, old, new, gone)
            if source and not any(_is_within(source, other) for other, _ in moved):
                moved.append((source, path))
    return moved


def _source_of(folder: str, old: Manifest, new: Manifest, gone: dict[bytes, str]) -> str | None:
    """The folder of `old` that is gone, and is `folder` under its new name."""
    inside = new.below(folder)
    files = (entry for entry in map(new.get, inside) if entry is not None and entry.is_file)
    first = next(files, None)
    at = gone.get(first.digest) if first is not None else None
    if first is None or at is None:
        return None
    relative = first.path[len(folder) :]
    source = at[: len(at) - len(relative)]
    if not source or not at.endswith(relative) or new.get(source) is not None:
        return None
    theirs = old.below(source)
    pairs = zip([source, *theirs], [folder, *inside], strict=False)
    if len(theirs) != len(inside) or not all(
        _is_same(old.get(one), new.get(other)) and one[len(source) :] == other[len(folder) :]
        for one, other in pairs
    ):
        return None
    return source


def _is_same(one: Entry | None, other: Entry | None) -> bool:
    return (
        one is not None
        and other is not None
        and (one.kind, one.mode, one.digest, one.target)
        == (other.kind, other.mode, other.digest, other.target)
    )


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/") or folder.startswith(path + "/")


def _only_mode_differs(before: Entry, after: Entry) -> bool:
    return before.digest == after.digest and before.target == after.target
