"""Looking: read the entry at a path of a workspace, or say why the path is not synced.

The scanner decides where to look.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Container, Iterator

from monarch_sync.ignoring.ignore import walk
from monarch_sync.ignoring.tracked import Tracked
from monarch_sync.scanning.contents import Contents
from monarch_sync.scanning.identities import InnerFolders
from monarch_sync.scanning.left_out import LeftOut
from monarch_sync.scanning.readings import Readings
from monarch_sync.tree.entry import TOO_DEEP, Entry, EntryKind, is_too_deep, parent_of, target_fault
from monarch_sync.workspace import Folder, Workspace


class Looking:
    """Looks at the disk for one scanner. What it reads is remembered for the next scan.

    ``last_entry`` returns the entry that the last scan found at a path, or None. ``tracked`` has,
    by folder, the files that git tracks although ignore rules leave them out.
    """

    def __init__(
        self, workspace: Workspace, contents: Contents, last_entry: Callable[[str], Entry | None]
    ) -> None:
        self._patterns = workspace.ignore
        self._last_entry = last_entry
        self.readings = Readings(contents)
        self.left_out = LeftOut()
        self.tracked: dict[Folder, Tracked] = {}
        self._inner = InnerFolders()

    def begin(self) -> None:
        """Begin a full scan: forget which paths the last one left out, and which files git
        tracks."""
        self.left_out.clear()
        self.tracked.clear()
        self.readings.begin()
        self._inner.begin()

    def add_landing(self, folder: Folder, entries: dict[str, Entry]) -> None:
        """Add an entry for the path in the replica at which a workspace's folder lands."""
        if folder.remote:
            mode = stat.S_IMODE(folder.local.stat().st_mode) & 0o777
            entries[folder.remote] = Entry(folder.remote, EntryKind.DIR, mode)

    def add(
        self, folder: Folder, relative: str, entries: dict[str, Entry],
        status: os.stat_result | None = None,
    ) -> Entry | None:  # fmt: skip
        """Look at a path; if it can be synced, add its entry to ``entries`` and return it.

        Returns None if the path has an entry already, is gone, or cannot be synced. If it cannot be
        synced, the reason is noted in ``left_out``.
        """
        path = folder.remote_of(relative)
        if path in entries:
            return None
        self.left_out.note_fine(path)
        try:
            entry = self.entry(path, f"{folder.local}/{relative}", status)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.left_out.note_unread(path, error)
            return None
        if isinstance(entry, Entry):
            entries[path] = entry
            return entry
        self.left_out.note(path, entry)
        return None

    def entry(self, path: str, local: str, status: os.stat_result | None = None) -> Entry | str:
        """Return the entry of a local path, or the reason why it cannot be synced.

        ``status`` is the path's status, if the caller has just read it. Raises ``OSError`` if the
        path cannot be read.
        """
        if status is None:
            status = os.lstat(local)
        if is_too_deep(path):
            return TOO_DEEP
        kind, mode = stat.S_IFMT(status.st_mode), status.st_mode & 0o777
        if kind == stat.S_IFREG:
            last = self._last_entry(path)
            reading = self.readings.look(local, status, last)
            digest = reading.digest
            if last is not None and last.is_file and last.digest == digest and last.mode == mode:
                return last
            return Entry(path, EntryKind.FILE, mode, reading.size, digest)
        if kind == stat.S_IFDIR:
            self._inner.check(path, local, status.st_dev)
            return Entry(path, EntryKind.DIR, mode)
        if kind == stat.S_IFLNK:
            target = os.readlink(local)
            return target_fault(path, target) or Entry(path, EntryKind.LINK, target=target)
        return "is neither a file nor a folder nor a link"

    def walk(self, folder: Folder, below: str = "", depth: int | None = None) -> Iterator[str]:
        def note(relative: str, error: OSError) -> None:
            self.left_out.note_unlisted(folder.remote_of(relative), error)

        patterns, uses_git = self._patterns, folder.follows_git
        return walk(folder.local, patterns, below, depth, on_error=note, uses_git=uses_git)

    def find_tracked(self, folder: Folder, listed: Container[str]) -> None:
        """Find the files that git tracks though rules leave them out. ``listed`` are the paths that
        ``walk`` has yielded."""
        try:
            self.tracked[folder] = Tracked(folder, self._patterns, listed)
        except OSError as error:
            self.left_out.note_untracked(folder.remote, error)

    def tracked_in(self, folder: Folder, relative: str = "") -> list[str]:
        """Return the paths in a folder that git tracks although rules leave them out, with the
        folders above them. Among these folders may be folders that no rule leaves out.
        """
        tracked = self.tracked.get(folder)
        return tracked.there(relative) if tracked is not None else []


def drop_orphans(entries: dict[str, Entry], above: str = "") -> None:
    """Remove each entry whose folder has no entry. Such a folder was deleted or replaced during the
    scan; the next scan finds what is at its path.

    ``above``: the folder that contains all ``entries``; it needs no entry.
    """
    folders = {path for path, entry in entries.items() if entry.is_dir}
    missing = {parent_of(path) for path in entries} - folders - {above}
    lost = tuple(f"{path}/" for path in missing)
    for path in [path for path in entries if path.startswith(lost)] if missing else ():
        del entries[path]
