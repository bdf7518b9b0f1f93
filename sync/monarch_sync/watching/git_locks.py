"""GitLocks: git's lock files. While one exists, git is at work; waiting for it makes a branch
switch one state."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import Event

from monarch_sync.ignoring.git_index import find_git_dir
from monarch_sync.workspace import Workspace

_MAX_GIT_SECONDS = 120.0  # Another program may be changing the files, not git.
_STEP_SECONDS = 0.002


class GitLocks:
    """Waits for the lock files of git in one workspace. A wait ends early when ``is_closed`` is
    set.

    A lock is given up once no file has changed for ``idle_seconds``: a program left it behind, or
    waits for a person. The paths of the locks are looked up at each wait, unless a watch reports
    new repositories (``rely``).
    """

    def __init__(self, workspace: Workspace, is_closed: Event, idle_seconds: float = 10.0) -> None:
        self._folders = [str(f.local) for f in workspace.folders if f.follows_git]
        self._is_closed = is_closed
        self._idle_seconds = idle_seconds
        #: The paths of the locks; None if they must be looked up.
        self._locks: list[str] | None = None
        #: Locks that were waited for in vain, as (inode, mtime), by path.
        self._abandoned: dict[str, tuple[int, int]] = {}

    def wait(self, look: Callable[[], int] = lambda: 0) -> bool:
        """Wait until git has finished its work; return whether there was a lock to wait for.

        ``look`` returns how many paths have been touched so far. While that number grows, git is
        checking out a large tree, and the wait is prolonged.
        """
        has_waited = False
        for lock in self._find() if self._locks is None else self._locks:
            has_waited |= self._wait_for(lock, look)
        return has_waited

    def rely(self) -> None:
        """Look the locks up now and keep their paths, until `doubt` is called."""
        self._locks = self._find()

    def doubt(self) -> None:
        """From now on, look the locks up at each wait, because no watch reports new repositories
        any more."""
        self._locks = None

    def _find(self) -> list[str]:
        repositories = map(find_git_dir, self._folders)
        return [
            f"{repository[1]}/index.lock" for repository in repositories if repository is not None
        ]

    def _wait_for(self, lock: str, look: Callable[[], int]) -> bool:
        has_waited = False
        num_touched = 0
        started = time.monotonic()
        deadline = started + self._idle_seconds
        while not self._is_closed.is_set():
            try:
                status = os.stat(lock)
            except OSError:
                break
            identity = (status.st_ino, status.st_mtime_ns)
            if self._abandoned.get(lock) == identity:
                break
            has_waited = True
            # Taken before the look, because this thread may be stopped for a while in between.
            looked_at = time.monotonic()
            if (num := look()) > num_touched:
                num_touched = num
                deadline = min(looked_at + self._idle_seconds, started + _MAX_GIT_SECONDS)
            if looked_at > deadline:
                self._abandoned[lock] = identity
                break
            self._is_closed.wait(_STEP_SECONDS)
        return has_waited
