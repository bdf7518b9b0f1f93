"""Live watch: the watches of one workspace, for as long as they are reliable.

Its covers decide which folders are watched.

A cookie proves that no event is missing: a nameless file is written, and its event is waited for.
Events are read in order, so every earlier save, in any folder, has been read by then. The file is
made once, and kept as long as the watches.
"""

from __future__ import annotations

import errno
import os
import tempfile
import time

from monarch_sync.errors import WorkspaceMissing
from monarch_sync.ignoring.ignore import RULE_FILES
from monarch_sync.watching.cover import CannotWatch, Cover
from monarch_sync.watching.inotify import Inotify
from monarch_sync.watching.outer_rules import OuterRules
from monarch_sync.watching.watched_folders import WatchedFolders
from monarch_sync.workspace import Workspace


class LiveWatch:
    """Watches a workspace from the moment when this object is made.

    If a change after that may have been missed, `catch_up` returns False. Touched paths gather in
    ``folders.touched``. Raises ``WorkspaceMissing`` if a folder does not exist, and ``CannotWatch``
    if the system cannot watch one.
    """

    def __init__(self, workspace: Workspace, cookie_seconds: float = 1.0) -> None:
        self._workspace = workspace
        self._cookie_seconds = cookie_seconds
        for folder in workspace.folders:
            folder.check()
        try:
            self._queue = Inotify()
        except OSError as error:
            raise CannotWatch(_why_not(error)) from None
        self.folders = WatchedFolders(self._queue)
        self._cookie = -1
        self._cookie_watch = -1
        try:
            self._watch()
        except BaseException as error:
            self._queue.close()
            if isinstance(error, FileNotFoundError | NotADirectoryError):
                raise WorkspaceMissing(str(error.filename), "went away") from None
            if isinstance(error, OSError):
                raise CannotWatch(_why_not(error)) from None
            raise

    def close(self) -> None:
        """Release the watches. Idempotent."""
        self._queue.close()
        cookie, self._cookie = self._cookie, -1
        if cookie >= 0:
            os.close(cookie)

    def wait(self, seconds: float | None, waker: int = -1) -> bool:
        """Wait until there are events, for ``seconds`` at most; return whether there are any. A
        byte that arrives at the descriptor ``waker`` ends the wait early.
        """
        return self._queue.wait(seconds, waker)

    def read(self) -> None:
        """Take in the waiting events."""
        self.folders.take(self._queue.read(), time.monotonic())

    def look(self) -> int:
        """Take in the waiting events; return how many touched paths have gathered."""
        self.read()
        return len(self.folders.touched)

    def catch_up(self) -> bool:
        """Take in the events of all changes before this call; return whether certainly none is
        missing."""
        try:
            return self._read_to_cookie() and self.is_sound()
        except OSError:
            return False

    def is_sound(self) -> bool:
        """Watch new folders; return whether all changes are seen by looking at the touched paths.

        That is not so if events were lost, if rules have changed, if a folder was replaced, or if a
        folder can be opened now that could not be opened before.
        """
        folders = self.folders
        try:
            if folders.is_lost or not all(cover.is_same for cover in self._covers):
                return False
            if any(rules.have_changed() for rules in self._rules):
                return False
            if any(cover.is_open_now for cover in self._covers):
                return False  # Its content was not watched.
            if any(path.rpartition("/")[2] in RULE_FILES for path in folders.touched):
                return False
            self._cover_fresh()
            if any(cover.has_new_rules for cover in self._covers):
                return False
        except (OSError, CannotWatch):
            return False  # The next watch finds out why.
        return True

    def _watch(self) -> None:
        folders, patterns = self._workspace.folders, self._workspace.ignore
        self._covers = [Cover(folder, patterns, self.folders) for folder in folders]
        self._rules = [OuterRules(f.local, patterns) for f in folders if f.follows_git]
        for cover in self._covers:
            cover.begin()

    def _cover_fresh(self) -> None:
        """Watch folders that have appeared, if they belong to the workspace."""
        by_parent: dict[str, list[str]] = {}
        if not all(self._is_plain(*move) for move in self.folders.moves):
            self.folders.moves.clear()
        moved = {new for _, new in self.folders.moves}
        for path in self.folders.take_fresh() - moved:
            by_parent.setdefault(os.path.dirname(path), []).append(path)
        # Folders above first: the new folders inside one are found with it.
        for parent, paths in sorted(by_parent.items()):
            for cover in self._covers:
                at = len(cover.root) + 1
                if f"{parent}/".startswith(f"{cover.root}/"):
                    cover.take_in(parent[at:], [path[at:] for path in paths])

    def _is_plain(self, old: str, new: str) -> bool:
        """Return whether the ignore rules give the same results for a renamed folder and its
        content under the old name as under the new. False if that is uncertain.
        """
        return all(
            cover.is_plain(old[len(cover.root) + 1 :], new[len(cover.root) + 1 :])
            for cover in self._covers
            if old.startswith(f"{cover.root}/") and new.startswith(f"{cover.root}/")
        )

    def _read_to_cookie(self) -> bool:
        """Write to the cookie file, and take in events until that write's event arrives, so that
        all earlier events have been taken in too. Return False if it does not arrive in time."""
        if self._cookie < 0:
            self._cookie = _open_cookie(self._covers[0].root if self._covers else "")
            self._cookie_watch = self._queue.watch_file(f"/proc/self/fd/{self._cookie}")
        number = self._cookie_watch
        os.pwrite(self._cookie, b"\1", 0)
        deadline = time.monotonic() + self._cookie_seconds
        while True:
            events = self._queue.read()
            self.folders.take(events, time.monotonic())
            if any(event.watch == number for event in events):
                return True
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0 or self.folders.is_lost:
                # If the event comes later, the next call would take it for its own.
                self.folders.is_lost = True
                return False
            self._queue.wait(seconds_left)


def _open_cookie(folder: str) -> int:
    """Open a new file for writing that no other program ever sees: it has no name, and is gone when
    this process ends.

    It lies outside the workspace if possible, because a file system with an open file cannot be
    unmounted.
    """
    try:
        fd, path = tempfile.mkstemp(prefix="monarch-cookie-")
        os.unlink(path)
    except OSError:
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    return fd


def _why_not(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return (
            "the system has no inotify watches left: "
            "raise fs.inotify.max_user_watches, or leave more folders out"
        )
    if error.errno == errno.EMFILE:
        return "the system has no inotify instances left: raise fs.inotify.max_user_instances"
    return str(error)
