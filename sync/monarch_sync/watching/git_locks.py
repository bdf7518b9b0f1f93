"""GitLocks: the files that are there while git is at work, so that a branch switch is one state."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import Event

from monarch_sync.ignoring.git_index import find_git_dir
from monarch_sync.workspace import Workspace

_GIT_SECONDS = 10.0  # a lock behind which nothing happens was left behind, or waits for a person
_MAX_GIT_SECONDS = 120.0  # another program may be at work behind it
_STEP_SECONDS = 0.002


class GitLocks:
    """The locks of git in one workspace. Waiting ends once ``is_closed``. The places of the locks
    are looked up each time, unless a watch tells of other repositories (`rely`)."""

    def __init__(self, workspace: Workspace, is_closed: Event) -> None:
        self._folders = [str(f.local) for f in workspace.folders if f.follows_git]
        self._is_closed = is_closed
        self._known: list[str] | None = None
        self._old: dict[str, tuple[int, int]] = {}  # waited for in vain

    def wait(self, look: Callable[[], int] = lambda: 0) -> bool:
        """Wait until git has finished its work; return whether there was anything to wait for.

        As long as ``look`` returns more each time, a large tree is being checked out.
        """
        has_waited = False
        for lock in self._find() if self._known is None else self._known:
            has_waited |= self._wait_for(lock, look)
        return has_waited

    def rely(self) -> None:
        """Look the locks up now. From here on a watch tells of other repositories, by `doubt`."""
        self._known = self._find()

    def doubt(self) -> None:
        """No watch tells of other repositories any more."""
        self._known = None

    def _find(self) -> list[str]:
        found = map(find_git_dir, self._folders)
        return [f"{one[1]}/index.lock" for one in found if one is not None]

    def _wait_for(self, lock: str, look: Callable[[], int]) -> bool:
        has_waited = False
        num_touched = 0
        started = time.monotonic()
        deadline = started + _GIT_SECONDS
        while not self._is_closed.is_set():
            try:
                status = os.stat(lock)
            except OSError:
                break
            identity = (status.st_ino, status.st_mtime_ns)
            if self._old.get(lock) == identity:
                break
            has_waited = True
            # Changes until then are seen, however long this thread stood still before.
            now = time.monotonic()
            if (num := look()) > num_touched:
                num_touched = num
                deadline = min(now + _GIT_SECONDS, started + _MAX_GIT_SECONDS)
            if now > deadline:
                self._old[lock] = identity
                break
            self._is_closed.wait(_STEP_SECONDS)
        return has_waited
