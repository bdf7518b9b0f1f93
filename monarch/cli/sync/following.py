"""Saves, one queue of them, whatever becomes of the folders that are watched."""

from __future__ import annotations

import queue
import threading
from collections.abc import Set as AbstractSet
from pathlib import Path

from monarch_sync import Watcher


class Following:
    """A watcher on a thread of its own, so that whoever waits for it can do other things too."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._found: queue.SimpleQueue[AbstractSet[Path] | Exception | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="monarch-watch", daemon=True)
        self._thread.start()

    @property
    def polls_because(self) -> str:
        """Why saves are not told but looked for, if so."""
        return self._watcher.polls_because

    def next(self, timeout_seconds: float) -> AbstractSet[Path] | None:
        """The paths touched since the last call, an empty set for a look at everything; None where
        there were none in time, or somebody woke us. Raises ``WatchEnded`` when a folder is gone,
        and whatever else has ended the watch."""
        try:
            found = self._found.get(timeout=timeout_seconds)
        except queue.Empty:
            return None
        touched = self._checked(found)
        while not self._found.empty():
            more = self._checked(self._found.get())
            if touched is None or more is None:
                touched = more if touched is None else touched
            else:
                touched = touched | more if touched and more else set()
        return touched

    def wake(self) -> None:
        """Have who waits look around. From any thread."""
        self._found.put(None)

    def _checked(self, found: AbstractSet[Path] | Exception | None) -> AbstractSet[Path] | None:
        if isinstance(found, Exception):
            raise found
        return found

    def _run(self) -> None:
        try:
            for touched in self._watcher:
                self._found.put(touched)
        except Exception as error:  # whoever waits is to hear of it, whatever it is
            self._found.put(error)

    def close(self) -> None:
        self._watcher.close()
        self._thread.join(5.0)
