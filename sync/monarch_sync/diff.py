"""Plan: what turns one manifest into another. Pure; the replica carries it out.

The order in which a plan is carried out is fixed: what gives way first (deepest first), then
folders (highest first), then files and links, then modes. A content that the old state holds
somewhere needs no bytes: the replica copies it from there.
"""

from __future__ import annotations

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
    """

    removes: list[Entry] = field(default_factory=list)
    folders: list[Entry] = field(default_factory=list)
    files: list[Entry] = field(default_factory=list)
    links: list[Entry] = field(default_factory=list)
    modes: list[Entry] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.removes or self.folders or self.files or self.links or self.modes)

    def touched(self) -> list[str]:
        """Every path that this plan changes, each once, in order."""
        parts = (self.removes, self.folders, self.files, self.links, self.modes)
        return sorted({entry.path for part in parts for entry in part})


def diff(old: Manifest, new: Manifest) -> Plan:
    """What turns ``old`` into ``new``."""
    plan = Plan()
    for path in sorted(new.changed_paths(old)):
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


def _only_mode_differs(before: Entry, after: Entry) -> bool:
    return before.digest == after.digest and before.target == after.target
