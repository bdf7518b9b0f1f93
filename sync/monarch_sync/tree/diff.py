"""SyncPlan: the steps from one manifest to another. Pure; the replica carries them out.

The order in which a plan is carried out is fixed: folders that move, then entries that are deleted
or replaced (deepest first), then folders (highest first), then files and links, then modes. A
content that the old state holds somewhere needs no bytes: the replica copies it from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from monarch_sync.tree.entry import Entry, EntryKind, folders_above
from monarch_sync.tree.manifest import Manifest
from monarch_sync.tree.tree import Child, join

_Key = tuple[int, bytes]


@dataclass
class SyncPlan:
    """The steps from one manifest to another, by manifest path.

    ``removes`` are entries to delete or to replace by another kind, deepest first; ``folders``,
    ``files``, ``links`` must be made or replaced; ``modes`` only change their permission bits.
    ``moved`` maps a new file whose content the old state had to that content's old path; ``before``
    maps the path of a file that replaces another to the other's entry. ``folders_moved`` are whole
    folders that are only renamed, as (old, new); their content is in none of the others, and they
    come first.
    """

    folders_moved: list[tuple[str, str]] = field(default_factory=list)
    removes: list[Entry] = field(default_factory=list)
    folders: list[Entry] = field(default_factory=list)
    files: list[Entry] = field(default_factory=list)
    links: list[Entry] = field(default_factory=list)
    modes: list[Entry] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)
    before: dict[str, Entry] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        parts = (self.removes, self.folders, self.files, self.links, self.modes)
        return not (self.folders_moved or any(parts))

    def touched(self) -> list[str]:
        """Return every path that this plan changes, each once, in order."""
        parts = (self.removes, self.folders, self.files, self.links, self.modes)
        return sorted({entry.path for part in parts for entry in part})


def diff(
    old: Manifest, new: Manifest, folders_moved: Sequence[tuple[str, str]] | None = None,
    is_here: Callable[[bytes], bool] = lambda digest: False,
) -> SyncPlan:  # fmt: skip
    """Return the plan that turns ``old`` into ``new``. ``folders_moved``: the folders to move
    whole, if the plan should not find them itself. ``is_here``: the contents that need not be
    searched for."""
    if folders_moved is None:
        folders_moved = find_moved_folders(old, new)
    plan = SyncPlan(folders_moved=list(folders_moved))
    fresh: list[Entry] = []
    base = old.replace(moves=folders_moved) if folders_moved else old
    for path, there, after in new.changes(base):
        before = old.get(path) if folders_moved else there
        if before is not None and (after is None or after.kind is not before.kind):
            plan.removes.append(before)
            before = None
        if after is None:
            continue
        kind = after.kind
        if before is not None and _only_mode_differs(before, after):
            plan.modes.append(after)
        elif kind is EntryKind.FILE:
            plan.files.append(after)
            if before is not None:
                plan.before[path] = before
            if not is_here(after.digest):
                fresh.append(after)
        elif kind is EntryKind.DIR:
            plan.folders.append(after)
        else:
            plan.links.append(after)
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
    """Return the highest folders of ``old`` that are gone and that equal a new folder, as (old,
    new)."""
    if new.lineage and new.lineage.base == old.digest:
        touched = new.lineage.touched.values()
        if not any(now is None and was is not None and was.is_dir for was, now in touched):
            return []
    gone, pending = _gone_and_new_folders(old, new)
    pending.sort(key=_by_path, reverse=True)
    moved: list[tuple[str, str]] = []
    taken: set[str] = set()
    above_taken: set[str] = set()
    while pending and gone:
        path, child = pending.pop()
        source = gone.pop(_key(child), None)
        if source is not None:
            above = set(folders_above(source))
            if source not in above_taken and not above & taken:
                moved.append((source, path))
                taken.add(source)
                above_taken |= above
                continue
        pending += sorted(_folders_in(path, child), key=_by_path, reverse=True)
    return moved


def _gone_and_new_folders(
    old: Manifest, new: Manifest
) -> tuple[dict[_Key, str], list[tuple[str, Child]]]:
    """Return the gone folders of `old` at any depth, by mode and content; and the highest of the
    new folders."""
    gone: dict[_Key, str] = {}
    fresh: list[tuple[str, Child]] = []
    pending = [("", old.root, new.root)]
    while pending:
        folder, one, other = pending.pop()
        for name in one.children.keys() | other.children.keys():
            before, now = one.children.get(name), other.children.get(name)
            path = join(folder, name)
            if before is None:
                if now is not None and now.node is not None:
                    fresh.append((path, now))
            elif now is None:
                below = [(path, before)]
                while below:
                    at, child = below.pop()
                    if child.node is not None and child.node.num_files:
                        gone[_key(child)] = at
                        below += _folders_in(at, child)
            elif before.fold != now.fold and before.node is not None and now.node is not None:
                pending.append((path, before.node, now.node))
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


def _by_path(pair: tuple[str, Child]) -> str:
    return pair[0]


def _only_mode_differs(before: Entry, after: Entry) -> bool:
    return before.digest == after.digest and before.target == after.target
