"""The paths that a scan leaves out of a manifest, each with the reason."""

from __future__ import annotations

from collections.abc import KeysView

from monarch_sync.report import Problem
from monarch_sync.scanning.unreadable import ROOT, listing_fault, tracking_fault
from monarch_sync.tree.entry import Entry, folders_above, parent_of


class LeftOut:
    """The paths that a scanner could not take into the manifest, as manifest paths with the
    reasons. They are kept from one scan to the next."""

    def __init__(self) -> None:
        self._problems: dict[str, Problem] = {}
        #: Of an unreadable folder, no entry below it is in the manifest.
        self._unreadable: dict[str, Problem] = {}
        #: All folders above these paths; it may have more.
        self._parents: set[str] = set()

    @property
    def unreadable(self) -> KeysView[str]:
        """The paths that exist and cannot be read."""
        return self._unreadable.keys()

    def problems(self) -> list[Problem]:
        return [*self._problems.values(), *self._unreadable.values()]

    def has_inside(self, path: str) -> bool:
        """Return whether ``path`` is left out, or a path inside it may be left out."""
        return any(path in paths for paths in (self._problems, self._unreadable, self._parents))

    def clear(self) -> None:
        """Drop all notes, before a full scan."""
        self._problems.clear()
        self._unreadable.clear()
        self._parents.clear()

    def forget(self, path: str) -> None:
        """Drop all notes about a path and below it, before it is looked at again."""
        for problems in (self._problems, self._unreadable):
            problems.pop(path, None)
            if path in self._parents:
                for other in [p for p in problems if p.startswith(f"{path}/")]:
                    del problems[other]

    def note(self, path: str, reason: str) -> None:
        """Note that a path cannot be synced, and why."""
        self._problems[path] = Problem(path, reason)
        self._parents.update(folders_above(path))

    def note_unread(self, path: str, error: OSError) -> None:
        """Note that a path cannot be read."""
        self._note_unreadable(path, error.strerror or str(error))

    def note_unlisted(self, path: str, error: OSError) -> None:
        """Note that a folder cannot be listed; nothing if the folder is gone."""
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            self._note_unreadable(path or ROOT, listing_fault(error))

    def note_untracked(self, path: str, error: OSError) -> None:
        """Record that it is unknown which files in a folder git tracks, unless the folder is
        unreadable already."""
        if (path or ROOT) not in self._unreadable:
            self._note_unreadable(path or ROOT, tracking_fault(error))

    def _note_unreadable(self, path: str, reason: str) -> None:
        self._unreadable[path] = Problem(path, reason, is_unreadable=True)
        self._parents.update(folders_above(path))

    def note_fine(self, path: str) -> None:
        """Note that a path can be synced."""
        if self._problems:
            self._problems.pop(path, None)

    def drop_unlisted(self, entries: dict[str, Entry]) -> None:
        """Remove from ``entries`` the folders that could not be listed and have no entry in them.
        If hosts got the mode of such a folder, they might not be able to read it either."""
        if self._unreadable:
            above = {parent_of(path) for path in entries}
            for path in self._unreadable.keys() - above:
                entries.pop(path, None)
