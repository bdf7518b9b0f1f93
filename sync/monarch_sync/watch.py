"""Saves, as they happen: which paths of a workspace were touched.

`watchfiles` brings the events. Its gaps are closed here: a burst is let settle; while git holds
its index lock we wait, so that a branch switch is one generation; and what was written into a
folder that was just made, for which no event may come, is found because a rescan of a new folder
looks inside, now and once more when the tree is quiet.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from watchfiles import watch as watch_files
from watchfiles.main import FileChange

from monarch_sync.errors import WatchEnded
from monarch_sync.git_index import find_git_dir
from monarch_sync.workspace import Workspace

__all__ = ["Watcher"]

_STEP_MS = 5
_SETTLE_MS = 10
_QUIET_MS = 300
_FLOOD = 1000  # touched paths at once
_NEVER = frozenset({"__pycache__", ".monarch"})


class Watcher:
    """Iterate over it: sets of touched paths; an empty set asks for a look at everything.

    Ends when ``close`` is called. Raises ``WatchEnded`` when a watched folder is gone.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._folders = [folder.local for folder in workspace.folders]
        self._stop = threading.Event()
        for folder in workspace.folders:
            folder.check()

    def close(self) -> None:
        """End the iteration, from any thread."""
        self._stop.set()

    def __iter__(self) -> Iterator[set[Path]]:
        events = watch_files(
            *self._folders,
            watch_filter=None,
            step=_STEP_MS,
            debounce=_SETTLE_MS,
            rust_timeout=_QUIET_MS,
            yield_on_timeout=True,
            stop_event=self._stop,
            raise_interrupt=True,
        )
        with contextlib.closing(events):
            yield from self._bursts(events)

    def _bursts(self, events: Iterator[set[FileChange]]) -> Iterator[set[Path]]:
        waiting: set[Path] = set()
        needs_audit = True  # of what was saved before the events began
        for changes in events:
            self._check()
            waiting |= {Path(path) for _, path in changes if not _is_noise(path)}
            if waiting and not self._is_git_busy():
                yield waiting
                # The queue of events may have run over, and nobody says so.
                is_flood = len(waiting) >= _FLOOD
                needs_audit = needs_audit or is_flood or any(path.is_dir() for path in waiting)
                waiting = set()
            elif needs_audit and not changes:
                # Quiet: look once more for what was written into new folders unseen.
                needs_audit = False
                yield set()

    def _check(self) -> None:
        for folder in self._folders:
            if not folder.is_dir():
                raise WatchEnded(str(folder), "the folder was deleted or replaced")

    def _is_git_busy(self) -> bool:
        for folder in self._folders:
            found = find_git_dir(str(folder))
            if found is not None and os.path.exists(f"{found[1]}/index.lock"):
                return True
        return False


def _is_noise(path: str) -> bool:
    parts = path.split(os.sep)
    if ".git" in parts:
        # What git does inside is its own business, but for the rules it keeps there.
        return parts[-1] not in ("exclude", "index")
    return not _NEVER.isdisjoint(parts) or path.endswith((".pyc", ".swp", "~"))
