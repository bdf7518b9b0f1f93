"""Scanner: make a manifest of a workspace's folders, reading only files that may have changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from monarch_sync.errors import BadManifest
from monarch_sync.ignoring.ignore import RULE_FILES
from monarch_sync.progress import progress
from monarch_sync.report import Problem
from monarch_sync.scanning.contents import Contents
from monarch_sync.scanning.identities import Identities
from monarch_sync.scanning.looking import Looking, drop_orphans
from monarch_sync.scanning.unreadable import ROOT, filled
from monarch_sync.touched import Touched
from monarch_sync.tree.entry import Entry, EntryKind, folders_above, parent_of
from monarch_sync.tree.manifest import Manifest
from monarch_sync.workspace import Folder, Workspace

_GIT_RULES = ("/.git/index", "/.git/info/exclude")
_RULES = (*RULE_FILES, *_GIT_RULES)


class Scan(NamedTuple):
    """A workspace's state, and the paths that could not be synced."""

    manifest: Manifest
    problems: list[Problem]

    @property
    def is_whole(self) -> bool:
        """Whether all paths could be read."""
        return not any(problem.is_unreadable for problem in self.problems)

    def over(self, base: Manifest) -> Scan:
        """Return this scan with the entries of ``base`` at paths that could not be read. ``base``
        is a host's manifest.

        Without these entries, a push would delete the paths on the host.
        """
        return self if self.is_whole else Scan(*filled(self.manifest, self.problems, base))


class Scanner:
    """Scans one workspace again and again. Use one scanner for all scans: each after the first
    reads only files that have changed, and takes only a stat of the others."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.manifest: Manifest | None = None
        self.contents = Contents(workspace)
        self._looking = Looking(workspace, self.contents, self._last_entry)
        self._identities = Identities()
        #: Paths that rules leave out and that are synced because git tracks them.
        self._hidden: set[str] = set()

    def scan(self, follow: Callable[[Entry], None] | None = None) -> Scan:
        """Scan all folders.

        ``follow`` is called with each entry that is found, folders before content; some entries may
        be gone when the scan ends. Raises ``WorkspaceMissing`` for a folder that does not exist. It
        is also raised for an empty folder that is on another disk than at the last scan.
        """
        progress().step = "scan"
        self._hidden.clear()
        self._looking.begin()
        entries: dict[str, Entry] = {}
        for folder in self.workspace.folders:
            self._identities.check(folder)
            self._looking.add_landing(folder, entries)
            if follow is not None:
                for above in way_to(folder.remote, entries):
                    follow(above)
            listed = dict.fromkeys(self._looking.walk(folder))
            self._looking.find_tracked(folder, listed)
            tracked = sorted(self._looking.tracked_in(folder))
            hidden = [path for path in tracked if path not in listed]
            self._hidden.update(map(folder.remote_of, hidden))
            for relative in (*listed, *hidden):
                entry = self._looking.add(folder, relative, entries)
                if follow is not None and entry is not None:
                    follow(entry)
            # All other folders on the way to a path are listed themselves.
            add_way(folder.remote, entries)
            self._identities.check(folder)  # It may have been unmounted during the scan.
        self._looking.readings.end()
        self._looking.left_out.drop_unlisted(entries)
        drop_orphans(entries)
        return Scan(self._update(entries), self._looking.left_out.problems())

    def rescan(self, paths: Iterable[str | os.PathLike[str]]) -> Scan:
        """Scan these absolute paths, and all content of those that are folders.

        Scans everything at the first call, after a change of rules, and if one folder lands inside
        another. Folders that ``paths`` (a ``Touched``) reports as only renamed are not looked at.
        """
        is_vouched = isinstance(paths, Touched)
        names = paths.names if isinstance(paths, Touched) else (os.fspath(path) for path in paths)
        touched = set(names)
        # Unreadable paths are looked at each time: a mount that comes back raises no event.
        again = {
            str(at)
            for path in self._looking.left_out.unreadable
            for at in self.workspace.locate(path)
        }
        touched |= again
        same_files = self._looking.readings.same_files(touched)
        if self.manifest is None or same_files is None or ROOT in self._looking.left_out.unreadable:
            return self.scan()
        touched |= same_files
        if any(_is_rule(path) for path in touched) or self.workspace.folders_meet(touched):
            return self.scan()
        if not again.isdisjoint(str(folder.local) for folder in self.workspace.folders):
            return self.scan()
        moved = self._with_moves(paths.moves) if isinstance(paths, Touched) else None
        if moved is not None:
            self.manifest, done = moved
            touched -= done
        changed: dict[str, Entry] = {}
        removed: set[str] = set()
        if not is_vouched:
            for folder in self.workspace.folders:
                self._identities.check(folder)
        self._rescan_all(touched, changed, removed)
        # A new folder may contain another name of a known file, which has changed then.
        self._rescan_all(self._looking.readings.stale_names() - touched, changed, removed)
        self._looking.readings.stale_names()
        if removed or self._looking.left_out.unreadable:
            # If a whole folder of the workspace is gone, its files must stay on the hosts.
            for folder in self.workspace.folders:
                self._identities.check(folder)
        if any(map(_is_rule, (*changed, *removed))):
            return self.scan()  # Rule files have come or gone with their folder.
        self._drop_empty_folders(changed, removed)
        manifest = self.manifest.replace(changed.values(), removed - changed.keys())
        self.manifest = manifest
        return Scan(manifest, self._looking.left_out.problems())

    def _rescan_all(self, touched: set[str], changed: dict[str, Entry], removed: set[str]) -> None:
        for folder in self.workspace.folders:
            above = f"{folder.local}/"
            inside = (path[len(above) :] for path in touched if path.startswith(above))
            for parent, relatives in self._by_parent(folder, inside).items():
                self._rescan_some(folder, parent, relatives, changed, removed)

    def _with_moves(self, moves: Sequence[tuple[str, str]]) -> tuple[Manifest, set[str]] | None:
        """Apply folder renames, as (old, new) paths, to the manifest without a scan of the folders.

        Returns the new manifest, and the paths that therefore need no scan. None: there are no
        renames, or one of them cannot be applied, so that all touched paths must be scanned.
        """
        assert self.manifest is not None
        if not moves or self._looking.readings.has_links:
            return None
        manifest = self.manifest
        for old, new in moves:
            homes = [f for f in self.workspace.folders if f.overlaps(old) or f.overlaps(new)]
            if len(homes) != 1:
                return None
            home = homes[0]
            old_inside, new_inside = (home.inside(path) for path in (old, new))
            old_remote, new_remote = home.remote_of(old_inside), home.remote_of(new_inside)
            if not (old_inside and new_inside) or self._looking.left_out.has_inside(old_remote):
                return None
            tracked = self._looking.tracked.get(home)
            if tracked is None or tracked.below(old_inside) or tracked.below(new_inside):
                return None
            is_wanted = new_inside in self._looking.walk(home, parent_of(new_inside), depth=1)
            # A link in a folder that is now less deep may lead outside.
            if not is_wanted or new_remote.count("/") < old_remote.count("/"):
                return None
            try:
                entry = self._looking.entry(new_remote, new) if _is_dir(new) else None
                manifest = manifest.replace(moves=[(old_remote, new_remote)])
            except (BadManifest, OSError):
                return None
            if not isinstance(entry, Entry):
                return None
            if entry != manifest.get(new_remote):
                manifest = manifest.replace([entry])
        missing = {old for old, _ in moves if not os.path.lexists(old)}
        return manifest, missing | {new for _, new in moves}

    def _by_parent(self, folder: Folder, inside: Iterable[str]) -> dict[str, list[str]]:
        """Return the paths to look at so that all changes at ``inside`` are seen, by parent folder.
        Each parent is in the manifest and still exists.

        If a folder above a path is new, gone, replaced or itself in ``inside``, only that folder is
        in the result, because the look at it covers its content.
        """
        assert self.manifest is not None
        inside = sorted(inside)
        is_known = {"": True, **dict.fromkeys(inside, False)}
        places: dict[str, list[str]] = {}
        for relative in inside:
            at = relative
            for above in reversed(list(folders_above(relative))):
                if above not in is_known:
                    entry = self.manifest.get(folder.remote_of(above))
                    is_known[above] = (
                        entry is not None and entry.is_dir and _is_dir(f"{folder.local}/{above}")
                    )
                if not is_known[above]:
                    at = above
                    break
            siblings = places.setdefault(parent_of(at), [])
            if not siblings or siblings[-1] != at:
                siblings.append(at)
        return places

    def _rescan_some(
        self,
        folder: Folder,
        parent: str,
        relatives: list[str],
        changed: dict[str, Entry],
        removed: set[str],
    ) -> None:
        """Look at some entries right inside ``parent``. Add what has changed to ``changed``, and
        what is gone to ``removed``."""
        assert self.manifest is not None
        unsure = [
            relative
            for relative in relatives
            if not self._restat(folder, relative, changed, removed)
        ]
        if not unsure:
            return
        wanted: set[str] = set()
        if folder.remote_of(parent) not in self._hidden:
            wanted.update(self._looking.walk(folder, parent, depth=1))
        for relative in unsure:
            path = folder.remote_of(relative)
            self._looking.left_out.forget(path)
            old_paths = self.manifest.below(path)
            if path in self.manifest:
                old_paths.append(path)
            entries: dict[str, Entry] = {}
            if relative in wanted:
                self._looking.add(folder, relative, entries)
                if path in entries and entries[path].is_dir:
                    for inner in self._looking.walk(folder, relative):
                        self._looking.add(folder, inner, entries)
            self._hidden.difference_update(old_paths)
            for inner in self._looking.tracked_in(folder, relative):
                if folder.remote_of(inner) not in entries:
                    self._hidden.add(folder.remote_of(inner))
                    self._looking.add(folder, inner, entries)
            self._looking.left_out.drop_unlisted(entries)
            drop_orphans(entries, folder.remote_of(parent))
            removed.update(inner for inner in old_paths if inner not in entries)
            for inner, entry in entries.items():
                if self.manifest.get(inner) != entry:
                    changed[inner] = entry

    def _restat(
        self, folder: Folder, relative: str, changed: dict[str, Entry], removed: set[str]
    ) -> bool:
        """Look at a path that the manifest has as a file or a link, and add it to ``changed`` or
        ``removed`` if it differs. Return False if the path is new or a folder, so that the folder
        around it must be looked at.

        No rule can leave a known path out: a change of rules brings a full scan.
        """
        assert self.manifest is not None
        path = folder.remote_of(relative)
        old_entry = self.manifest.get(path)
        if old_entry is None or old_entry.is_dir:
            return False
        try:
            status = os.lstat(f"{folder.local}/{relative}")
        except OSError:
            status = None
        if status is not None and stat.S_ISDIR(status.st_mode):
            return False
        entries: dict[str, Entry] = {}
        self._looking.add(folder, relative, entries, status)
        if path not in entries:
            removed.add(path)
        elif entries[path] != old_entry:
            changed[path] = entries[path]
        return True

    def _drop_empty_folders(self, changed: dict[str, Entry], removed: set[str]) -> None:
        """Remove folders that have no more files and that ignore rules leave out. They were synced
        only for files in them that git tracks.
        """
        assert self.manifest is not None
        for path in [path for path in removed if parent_of(path) in self._hidden]:
            for folder in folders_above(path):
                if folder not in self._hidden or any(
                    other.startswith(f"{folder}/") for other in changed
                ):
                    break
                if not removed.issuperset(self.manifest.below(folder)):
                    break
                removed.add(folder)
                self._hidden.discard(folder)

    def _last_entry(self, path: str) -> Entry | None:
        return self.manifest.get(path) if self.manifest is not None else None

    def _update(self, entries: dict[str, Entry]) -> Manifest:
        """Make ``entries`` the scanner's manifest and return it. It shares the unchanged folders
        with the manifest of the last scan."""
        if self.manifest is None:
            self.manifest = Manifest(entries.values())
        else:
            old = self.manifest
            changed = [entry for path, entry in entries.items() if old.get(path) != entry]
            num_new = sum(entry.path not in old for entry in changed)
            removed: list[str] = []
            if len(entries) - num_new < len(old):
                removed = [entry.path for entry in old if entry.path not in entries]
            if changed or removed:
                self.manifest = old.replace(changed, removed)
        return self.manifest


def _is_rule(path: str) -> bool:
    return path.endswith(_RULES) and (
        path.rpartition("/")[2] in RULE_FILES or path.endswith(_GIT_RULES)
    )


def _is_dir(local: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(local).st_mode)
    except OSError:
        return False


def scan(workspace: Workspace) -> Scan:
    """Scan a workspace once, without the memory of an earlier scan."""
    return Scanner(workspace).scan()


_MODE = 0o755  # of folders above a landing, which the author does not have


def add_way(landing: str, entries: dict[str, Entry]) -> None:
    """Add an entry for each folder above ``landing``, a manifest path at which a workspace folder
    lands. Folders that have an entry keep it.
    """
    for folder in folders_above(landing):
        entries.setdefault(folder, Entry(folder, EntryKind.DIR, _MODE))


def way_to(landing: str, entries: dict[str, Entry]) -> Iterator[Entry]:
    """Yield the entries that `add_way` would add, highest folder first, and then the entry of
    ``landing`` itself. The root, "", has no entry.
    """
    for folder in reversed(list(folders_above(landing))):
        if folder not in entries:
            yield Entry(folder, EntryKind.DIR, _MODE)
    if landing:
        yield entries[landing]
