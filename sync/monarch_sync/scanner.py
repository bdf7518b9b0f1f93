"""Folders to a manifest, reading only what may have changed.

A stat cache tells which files are as they were. It is not fooled by a change within the same
clock tick: a file that was modified as late as it was read is read again next time, as git does.
A file is taken as it is between two equal stats; one that moves while it is read is read again.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from monarch_sync.chunks import cut
from monarch_sync.contents import Contents
from monarch_sync.digest import LARGE_BYTES, digest_bytes
from monarch_sync.entry import Entry, Kind, parent_of, path_fault, target_fault
from monarch_sync.ignore import tracked_though_ignored, walk
from monarch_sync.manifest import Manifest
from monarch_sync.report import Problem
from monarch_sync.workspace import Folder, Workspace

__all__ = ["Scan", "Scanner", "scan"]

_TICK_NS = 20_000_000
_MAX_TRIES = 5
_RULE_FILES = frozenset({".gitignore", ".monarchignore", "exclude", "index", "pyvenv.cfg"})


class Scan(NamedTuple):
    """A workspace's state, and the paths that could not be taken along."""

    manifest: Manifest
    problems: list[Problem]


class _Seen(NamedTuple):
    """A file as it was when it was read, and when that was."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    digest: bytes
    read_ns: int

    def is_still(self, status: os.stat_result) -> bool:
        same = (
            self.size == status.st_size
            and self.mtime_ns == status.st_mtime_ns
            and self.ctime_ns == status.st_ctime_ns
            and self.inode == status.st_ino
        )
        return same and max(self.mtime_ns, self.ctime_ns) + _TICK_NS < self.read_ns


class Scanner:
    """Scans one workspace again and again; keep it, and later scans cost a stat a file."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.manifest: Manifest | None = None
        self.contents = Contents(workspace)
        # By inode, so that a folder that was renamed is not read again.
        self._seen: dict[tuple[int, int], _Seen] = {}
        self._seen_before: dict[tuple[int, int], _Seen] = {}
        self._problems: dict[str, Problem] = {}
        # Local paths of files with several names: who writes to one, changes them all.
        self._names: dict[tuple[int, int], set[str]] = {}
        # What git's rules hide, and what comes along all the same, because git tracks it.
        self._hidden: set[str] = set()

    def scan(self) -> Scan:
        """Look at everything. Raises ``WorkspaceMissing`` for a folder that is not there."""
        self._problems.clear()
        self._hidden.clear()
        self._names.clear()
        # What is not met again is forgotten.
        self._seen_before, self._seen = self._seen, {}
        entries: dict[str, Entry] = {}
        for folder in self.workspace.folders:
            folder.check()
            self._add_landing(folder, entries)
            patterns = self.workspace.ignore
            listed = dict.fromkeys(walk(folder.local, patterns))
            tracked = tracked_though_ignored(folder.local, patterns, listed)
            above = {path for relative in tracked for path in _folders_of(relative)}
            hidden = (*tracked, *(above - listed.keys()))
            self._hidden.update(map(folder.remote_of, hidden))
            for relative in (*listed, *hidden):
                self._add(folder, relative, entries)
        for path in list(entries):
            _add_parents(path, entries)
        self._seen_before = {}
        changed = self._update(entries)
        return Scan(changed, list(self._problems.values()))

    def rescan(self, paths: Iterable[str | os.PathLike[str]]) -> Scan:
        """Look at the folders that hold these (absolute) paths, and at new folders in them.

        Falls back to a whole scan where it has to: at the first call, when rules changed, and
        where one folder lands inside another.
        """
        touched = {os.fspath(path) for path in paths}
        touched.update(*map(self._other_names, touched))
        new_rules = any(os.path.basename(path) in _RULE_FILES for path in touched)
        if self.manifest is None or new_rules or _overlap(self.workspace.folders):
            return self.scan()
        changed: dict[str, Entry] = {}
        removed: set[str] = set()
        for folder in self.workspace.folders:
            folder.check()
            above = str(folder.local) + "/"
            inside = sorted(path[len(above) :] for path in touched if path.startswith(above))
            listed: set[str] = set()
            for relative in inside:
                parent = os.path.dirname(relative)
                if parent not in listed and not self._restat(folder, relative, changed, removed):
                    listed.add(parent)
                    self._rescan_folder(folder, parent, changed, removed)
                self._rescan_tree(folder, relative, changed, removed)
        manifest = self.manifest.replace(changed.values(), removed - changed.keys())
        self.manifest = manifest
        return Scan(manifest, list(self._problems.values()))

    def _other_names(self, local: str) -> set[str]:
        if not self._names:
            return set()
        try:
            status = os.lstat(local)
        except OSError:
            return set()
        return self._names.get((status.st_dev, status.st_ino), set())

    def _restat(
        self, folder: Folder, relative: str, changed: dict[str, Entry], removed: set[str]
    ) -> bool:
        """Whether a look at the path alone tells all: it was known, and is a file still, or gone.

        What is known is not hidden by any rule; a change of rules brings a whole scan.
        """
        assert self.manifest is not None
        path = folder.remote_of(relative)
        before = self.manifest.get(path)
        if before is None or before.is_dir or path in self._hidden:
            return False
        try:
            if stat.S_ISDIR(os.lstat(folder.local / relative).st_mode):
                return False
        except OSError:
            return False
        found: dict[str, Entry] = {}
        self._add(folder, relative, found)
        if path not in found:
            removed.add(path)
        elif found[path] != before:
            changed[path] = found[path]
        return True

    def _rescan_tree(
        self, folder: Folder, relative: str, changed: dict[str, Entry], removed: set[str]
    ) -> None:
        """Look at all inside a known folder that was touched itself: it may be another one now."""
        assert self.manifest is not None
        remote = folder.remote_of(relative)
        before = self.manifest.get(remote)
        local = folder.local / relative
        if before is None or not before.is_dir or local.is_symlink() or not local.is_dir():
            return
        found: dict[str, Entry] = {}
        for inner in walk(folder.local, self.workspace.ignore, relative):
            self._add(folder, inner, found)
        known = self.manifest.below(remote)
        for path in self._hidden.intersection(known):
            self._add(folder, folder.relative_of(path) or "", found)
        removed.update(path for path in known if path not in found)
        changed.update({p: e for p, e in found.items() if self.manifest.get(p) != e})

    def _rescan_folder(
        self, folder: Folder, relative: str, changed: dict[str, Entry], removed: set[str]
    ) -> None:
        assert self.manifest is not None
        remote = folder.remote_of(relative)
        if remote and remote not in self.manifest and relative:
            # A folder that is new to us: its parent's listing brings it, with all inside.
            self._rescan_folder(folder, os.path.dirname(relative), changed, removed)
            return
        for path in [path for path in self._problems if parent_of(path) == remote]:
            del self._problems[path]
        known = set(self._children(remote))
        found: dict[str, Entry] = {}
        if remote not in self._hidden and (folder.local / relative).is_dir():
            for inner in walk(folder.local, self.workspace.ignore, relative, depth=1):
                self._add(folder, inner, found)
        for path in (path for path in self._hidden if parent_of(path) == remote):
            self._add(folder, folder.relative_of(path) or "", found)
        for path in known - found.keys():
            removed.update((path, *self.manifest.below(path)))
        for path, entry in found.items():
            before = self.manifest.get(path)
            if entry == before:
                continue
            changed[path] = entry
            if before is not None and before.is_dir:
                removed.update(self.manifest.below(path))
            if entry.is_dir and (before is None or not before.is_dir):
                new = folder.relative_of(path) or ""
                for inner in walk(folder.local, self.workspace.ignore, new):
                    self._add(folder, inner, changed)

    def _children(self, remote: str) -> list[str]:
        assert self.manifest is not None
        return self.manifest.children(remote)

    def _update(self, entries: dict[str, Entry]) -> Manifest:
        """The new manifest, derived from the last one where there is one."""
        if self.manifest is None:
            self.manifest = Manifest(entries.values())
        else:
            old = self.manifest
            changed = [entry for path, entry in entries.items() if old.get(path) != entry]
            removed = [entry.path for entry in old if entry.path not in entries]
            if changed or removed:
                self.manifest = old.replace(changed, removed)
        return self.manifest

    def _add_landing(self, folder: Folder, entries: dict[str, Entry]) -> None:
        if folder.remote:
            mode = stat.S_IMODE(folder.local.stat().st_mode) & 0o777
            entries[folder.remote] = Entry(folder.remote, Kind.DIR, mode)

    def _add(self, folder: Folder, relative: str, entries: dict[str, Entry]) -> None:
        path = folder.remote_of(relative)
        if path in entries:
            return
        local = f"{folder.local}/{relative}" if relative else str(folder.local)
        self._problems.pop(path, None)
        try:
            fault = path_fault(path)
            entry = fault or self._entry(path, local)
        except FileNotFoundError:
            return
        except OSError as error:
            entry = error.strerror or str(error)
        if isinstance(entry, Entry):
            entries[path] = entry
        else:
            self._problems[path] = Problem(path, entry)

    def _entry(self, path: str, local: str) -> Entry | str:
        """The entry of a local path, or why there is none."""
        status = os.lstat(local)
        mode = stat.S_IMODE(status.st_mode) & 0o777
        if stat.S_ISDIR(status.st_mode):
            return Entry(path, Kind.DIR, mode)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(local)
            return target_fault(path, target) or Entry(path, Kind.LINK, target=target)
        if not stat.S_ISREG(status.st_mode):
            return "is neither a file nor a folder nor a link"
        key = (status.st_dev, status.st_ino)
        if status.st_nlink > 1:
            self._names.setdefault(key, set()).add(local)
        seen = self._seen.get(key) or self._seen_before.get(key)
        if seen is None or not seen.is_still(status):
            before = self.manifest.get(path) if self.manifest is not None else None
            seen = _read(local, status, self.contents, before)
        self._seen[key] = seen
        return Entry(path, Kind.FILE, mode, seen.size, seen.digest)


def _read(local: str, status: os.stat_result, contents: Contents, before: Entry | None) -> _Seen:
    chunks = contents.chunks(before.digest) if before is not None else None
    for _ in range(_MAX_TRIES):
        read_ns = time.time_ns()
        with open(local, "rb", buffering=0) as file:
            if status.st_size >= LARGE_BYTES:
                digest, size, chunks = cut(file, chunks)
                contents.remember_chunks(digest, chunks)
            else:
                content = file.readall()
                digest, size = digest_bytes(content), len(content)
                contents.remember(digest, content)
            after = os.fstat(file.fileno())
        unmoved = (after.st_mtime_ns, after.st_size) == (status.st_mtime_ns, status.st_size)
        status = after
        if unmoved and size == after.st_size:
            break
    return _Seen(size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, digest, read_ns)


def _overlap(folders: Sequence[Folder]) -> bool:
    return any(
        one is not other and one.relative_of(other.remote) is not None
        for one in folders
        for other in folders
    )


def _folders_of(path: str) -> Iterator[str]:
    """The folders on the way to a path, deepest first."""
    while path := parent_of(path):
        yield path


def _add_parents(path: str, entries: dict[str, Entry]) -> None:
    for folder in _folders_of(path):
        entries.setdefault(folder, Entry(folder, Kind.DIR, 0o755))


def scan(workspace: Workspace) -> Scan:
    """Scan once, from nothing."""
    return Scanner(workspace).scan()
