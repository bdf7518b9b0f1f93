"""``monarch sync --dry-run``: computes what a push would send, and to which hosts."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from monarch.runtime.workspace.pushing.host_history import HostHistory
from monarch_sync import Manifest, Scan, Workspace, WorkspaceEmptied
from monarch_sync.messages import StateReply
from monarch_sync.scanning.emptied import bare_folders, refuse_emptied
from monarch_sync.tree.diff import diff
from monarch_sync.words import byte_size, counted, printable, some

_MAX_LISTED = 60
_MAX_FOLDERS = 20
_MAX_LARGEST = 5


class PathChange(NamedTuple):
    """A path that a push would change; ``num_bytes`` would be sent, before compression."""

    action: str
    path: str
    num_bytes: int = 0
    source: str = ""
    mode: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "action": self.action, "path": self.path, "bytes": self.num_bytes,
            "from": self.source, "mode": self.mode,
        }  # fmt: skip


class Preview(NamedTuple):
    """The preview of a push to hosts that have the same state.

    ``generation`` is theirs. A preview without hosts is for a first sync.
    """

    hosts: list[str]
    generation: int
    changes: list[PathChange]

    @property
    def num_bytes(self) -> int:
        return sum(change.num_bytes for change in self.changes)

    def to_dict(self) -> dict[str, Any]:
        return {
            "hosts": self.hosts, "generation": self.generation, "bytes": self.num_bytes,
            "changes": [change.to_dict() for change in self.changes],
        }  # fmt: skip


def first_sync(scan: Scan) -> Preview:
    """Return the preview for hosts that have nothing."""
    return Preview([], 0, list(_changes(Manifest(), scan.manifest, {})))


def over_hosts(states: Mapping[str, StateReply], scan: Scan) -> Scan:
    """Return the scan, with unreadable files replaced by those of the hosts' newest generation."""
    if scan.is_whole or not states:
        return scan
    newest = max(states.values(), key=lambda state: state.generation)
    return scan.over(Manifest.from_rows(newest.rows, newest.digest_name))


def previews(past: HostHistory, states: Mapping[str, StateReply], scan: Scan) -> list[Preview]:
    """Return previews for the hosts of an allocation; hosts with the same state share one.
    ``states`` has each host's state by name.
    """
    groups: dict[tuple[int, bytes], list[str]] = {}
    for host, state in states.items():
        groups.setdefault((state.generation, state.digest), []).append(host)
    results = []
    for (generation, _), hosts in groups.items():
        state = states[hosts[0]]
        held_manifest = Manifest.from_rows(state.rows, state.digest_name)
        digests = [e.digest for e in diff(held_manifest, scan.manifest).files]
        # The host's store may still have a content that was there before.
        lacking = past.missing(hosts[0], list(dict.fromkeys(digests)))
        held = {digest: 0 for digest in digests if digest not in lacking}
        changes = list(_changes(held_manifest, scan.manifest, held))
        results.append(Preview(hosts, generation, changes))
    return results


def why_refused(workspace: Workspace, states: Mapping[str, StateReply], scan: Scan) -> str:
    """Return why a push would be refused because it empties folders; "" if it would not."""
    bare = bare_folders(workspace, scan.manifest)
    try:
        for state in states.values() if bare else ():
            refuse_emptied(workspace, bare, Manifest.from_rows(state.rows, state.digest_name))
    except WorkspaceEmptied as error:
        return str(error)
    return ""


def _changes(start: Manifest, goal: Manifest, held: Mapping[bytes, int]) -> Iterator[PathChange]:
    """Yield the changes in the order of paths. Contents in ``held`` need not be sent."""
    plan = diff(start, goal)
    changes = [PathChange("rename", new, source=old) for old, new in plan.folders_moved]
    counted_once: set[bytes] = set()
    moved_away: set[str] = set()
    for entry in plan.files:
        source = plan.moved.get(entry.path)
        if source is not None and source not in goal and source not in moved_away:
            moved_away.add(source)
            changes.append(PathChange("rename", entry.path, source=source))
            continue
        travels = source is None and entry.digest not in held and entry.digest not in counted_once
        counted_once.add(entry.digest)
        old = start.get(entry.path)
        action = "write" if old is not None and old.is_file else "new"
        changes.append(PathChange(action, entry.path, entry.size if travels else 0))
    for entry in plan.folders:
        if not goal.below(entry.path):  # other folders show by their contents
            changes.append(PathChange("folder", entry.path))
    for entry in plan.links:
        changes.append(PathChange("link", entry.path, source=entry.target))
    for entry in plan.modes:
        changes.append(PathChange("mode", entry.path, mode=f"{entry.mode:03o}"))
    for entry in plan.removes:
        is_seen = entry.is_dir and start.below(entry.path)
        if not is_seen and entry.path not in moved_away and entry.path not in goal:
            changes.append(PathChange("delete", entry.path))
    yield from sorted(changes, key=lambda change: change.path)


def preview_lines(preview: Preview, *, lists_all: bool) -> Iterator[str]:
    """Yield a line for each changed path, then a summary.

    If there are many paths, and ``lists_all`` is false, yield their number in each folder, and the
    largest files.
    """
    if lists_all or len(preview.changes) <= _MAX_LISTED:
        yield from map(_line_of, preview.changes)
    else:
        yield from _summary(preview.changes)
    numbers: dict[str, int] = {}
    for change in preview.changes:
        numbers[change.action] = numbers.get(change.action, 0) + 1
    kinds = ", ".join(f"{num:,} {_DONE[action]}" for action, num in numbers.items())
    if not preview.hosts:
        yield (
            "no allocation is up (`monarch apply`): a first sync would move all of it, "
            f"{byte_size(preview.num_bytes)} in {counted(numbers.get('new', 0), 'file')}, "
            "to every host"
        )
        return
    to = some(preview.hosts, 4)
    if not preview.changes:
        yield f"nothing would move to {to}: all is there, as generation {preview.generation}"
        return
    each, has = (" each", "have") if len(preview.hosts) > 1 else ("", "has")
    had = f"generation {preview.generation}" if preview.generation else "nothing yet"
    amount = f"{byte_size(preview.num_bytes)} at most" if preview.num_bytes else "no content"
    yield f"would send {amount} to {to}{each}, which {has} {had}: {kinds}"


def _line_of(change: PathChange) -> str:
    detail = {
        "rename": f"from {printable(change.source)}",
        "link": f"to {printable(change.source)}",
        "mode": change.mode,
        "delete": "",
        "folder": "",
    }.get(change.action)
    size = f"{change.num_bytes:,}" if detail is None else ""
    tail = f"  {detail}" if detail else ""
    return f"  {change.action:<6} {size:>13}  {printable(change.path)}{tail}"


def _summary(changes: Sequence[PathChange]) -> Iterator[str]:
    """Yield a line for each folder, those that lose files first, then by number of paths.

    The largest files get a line each.
    """
    folders: dict[str, Counter[str]] = {}
    sizes: Counter[str] = Counter()
    for change in changes:
        top, slash, _ = change.path.partition("/")
        folder = top + slash if slash else "./"
        folders.setdefault(folder, Counter())[change.action] += 1
        sizes[folder] += change.num_bytes
    by_number = sorted(
        folders, key=lambda name: (not folders[name]["delete"], -folders[name].total(), name)
    )
    for folder in by_number[:_MAX_FOLDERS]:
        kinds = ", ".join(f"{num:,} {_DONE[action]}" for action, num in folders[folder].items())
        yield f"  {byte_size(sizes[folder]):>10}  {printable(folder)}  {kinds}"
    if others := by_number[_MAX_FOLDERS:]:
        num_paths = sum(folders[folder].total() for folder in others)
        num_bytes = sum(sizes[folder] for folder in others)
        yield (
            f"  {byte_size(num_bytes):>10}  {counted(len(others), 'more folder')}  "
            f"{counted(num_paths, 'path')}"
        )
    largest = heapq.nlargest(_MAX_LARGEST, changes, key=lambda change: change.num_bytes)
    if any(change.num_bytes for change in largest):
        yield "the largest:"
        yield from (_line_of(change) for change in largest if change.num_bytes)
    yield "--all lists each path"


_DONE = {
    "new": "new", "write": "changed", "rename": "renamed", "mode": "of another mode",
    "link": "linked", "delete": "deleted", "folder": "made as an empty folder",
}  # fmt: skip
