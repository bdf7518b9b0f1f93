"""SyncPlan: the steps from one manifest to another. Pure; the replica carries them out.

The order in which a plan is carried out is fixed: folders that move, then entries that are deleted
or replaced (deepest first), then folders (highest first), then files and links, then modes. A
content that the old state holds somewhere needs no bytes: the replica copies it from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from monarch_sync.tree.entry import Entry, EntryKind, folders_above
from monarch_sync.tree.manifest import Manifest
from monarch_sync.tree.tree import Child, join

_Key = tuple[int, bytes]


@dataclass
class SyncPlan:
    """The steps from one manifest to another, by manifest path.

    ``folders_moved`` come first: folders that are only renamed, as (old, new); no other step names
    their content. ``removes`` are entries to delete or to replace by another kind, deepest first.
    ``folders``, ``files`` and ``links`` are made or replaced; of ``modes``, only the permission
    bits change. ``moved``: for each new file whose content ``old`` has at another path, that path.
    ``replaced``: for each file that is replaced, its old entry.
    """

    folders_moved: list[tuple[str, str]] = field(default_factory=list)
    removes: list[Entry] = field(default_factory=list)
    folders: list[Entry] = field(default_factory=list)
    files: list[Entry] = field(default_factory=list)
    links: list[Entry] = field(default_factory=list)
    modes: list[Entry] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)
    replaced: dict[str, Entry] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether the plan has no steps."""
        parts = (self.removes, self.folders, self.files, self.links, self.modes)
        return not (self.folders_moved or any(parts))

    def touched(self) -> list[str]:
        """Return every path that this plan changes, each once, in order."""
        parts = (self.removes, self.folders, self.files, self.links, self.modes)
        return sorted({entry.path for part in parts for entry in part})


def diff(
    old: Manifest,
    new: Manifest,
    folders_moved: Sequence[tuple[str, str]] | None = None,
    is_here: Callable[[bytes], bool] = lambda digest: False,
) -> SyncPlan:
    """Return the plan that turns ``old`` into ``new``.

    ``folders_moved`` are the folders to move whole; None: they are searched for. ``is_here`` tells
    whether the caller has a content, by its digest; for such a content the plan names no file of
    ``old`` in ``moved``.
    """
    if folders_moved is None:
        folders_moved = find_moved_folders(old, new)
    plan = SyncPlan(folders_moved=list(folders_moved))
    fresh: list[Entry] = []
    base = old.replace(moves=folders_moved) if folders_moved else old
    for path, changed, new_entry in new.changes(base):
        old_entry = old.get(path) if folders_moved else changed
        if old_entry is not None and (new_entry is None or new_entry.kind is not old_entry.kind):
            plan.removes.append(old_entry)
            old_entry = None
        if new_entry is None:
            continue
        kind = new_entry.kind
        if old_entry is not None and _only_mode_differs(old_entry, new_entry):
            plan.modes.append(new_entry)
        elif kind is EntryKind.FILE:
            plan.files.append(new_entry)
            if old_entry is not None:
                plan.replaced[path] = old_entry
            if not is_here(new_entry.digest):
                fresh.append(new_entry)
        elif kind is EntryKind.DIR:
            plan.folders.append(new_entry)
        else:
            plan.links.append(new_entry)
    if fresh:
        sources = old.paths_of(entry.digest for entry in fresh)
        plan.moved = {
            entry.path: sources[entry.digest]
            for entry in fresh
            if sources.get(entry.digest, entry.path) != entry.path
        }
    plan.removes.sort(key=_depth, reverse=True)
    plan.folders.sort(key=_depth)
    return plan


def _depth(entry: Entry) -> int:
    return entry.path.count("/")


def find_moved_folders(old: Manifest, new: Manifest) -> list[tuple[str, str]]:
    """Return the renamed folders, as (old path, new path): the first is only in ``old``, the second
    only in ``new``, and both have the same mode and content.

    Folders inside a returned folder are not returned.
    """
    if new.lineage and new.lineage.base == old.digest:
        touched = new.lineage.touched.values()
        if not any(before and before.is_dir and after is None for before, after in touched):
            return []
    gone, pending = _gone_and_new_folders(old, new)
    pending.sort(key=itemgetter(0), reverse=True)
    moved: list[tuple[str, str]] = []
    moved_sources: set[str] = set()
    above_moved: set[str] = set()
    while pending and gone:
        path, child = pending.pop()
        source = gone.pop(_key(child), None)
        if source is not None:
            above = set(folders_above(source))
            if source not in above_moved and not above & moved_sources:
                moved.append((source, path))
                moved_sources.add(source)
                above_moved |= above
                continue
        pending += sorted(_folders_in(path, child), key=itemgetter(0), reverse=True)
    return moved


def _gone_and_new_folders(
    old: Manifest, new: Manifest
) -> tuple[dict[_Key, str], list[tuple[str, Child]]]:
    """Return the path of each folder that only ``old`` has, by mode and content, and the folders
    that only ``new`` has.

    Old folders without files are left out. Of nested new folders, only the highest is returned, and
    empty folders are left out.
    """
    gone: dict[_Key, str] = {}
    fresh: list[tuple[str, Child]] = []
    pending = [("", old.root, new.root)]
    while pending:
        folder, old_node, new_node = pending.pop()
        for name in old_node.children.keys() | new_node.children.keys():
            old_child, new_child = old_node.children.get(name), new_node.children.get(name)
            path = join(folder, name)
            if old_child is None:
                if new_child is not None and new_child.node is not None:
                    fresh.append((path, new_child))
            elif new_child is None:
                below = [(path, old_child)]
                while below:
                    at, child = below.pop()
                    if child.node is not None and child.node.num_files:
                        gone[_key(child)] = at
                        below += _folders_in(at, child)
            elif old_child.fold != new_child.fold and old_child.node and new_child.node:
                pending.append((path, old_child.node, new_child.node))
    return gone, fresh


def _key(child: Child) -> _Key:
    """Return a folder's mode and content digest, which do not depend on its name."""
    mode = child.entry.mode if child.entry is not None else -1
    return mode, child.node.digest if child.node is not None else b""


def _folders_in(path: str, child: Child) -> list[tuple[str, Child]]:
    if child.node is None or not child.node.num_folders:
        return []
    inside = child.node.children.items()
    return [(join(path, name), inner) for name, inner in inside if inner.node is not None]


def _only_mode_differs(old: Entry, new: Entry) -> bool:
    return old.digest == new.digest and old.target == new.target
