"""Live watch: the watches of one workspace, for as long as they can be relied on.

Which of its folders belong to it, rules say; they are watched, others are not. A new folder is
watched first and listed after, and listed once more until nothing new is in it: what is written
into it meanwhile is found by the one or told by the other.

The proof that nothing is missing is a cookie: a file without a name, on the workspace's own file
system, is written, and then awaited in the stream of events, behind which no earlier save can be.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator

from monarch_sync.entry import folders_above
from monarch_sync.errors import WorkspaceMissing
from monarch_sync.file_system import tells_all
from monarch_sync.ignore import judges_alike, tracked_though_ignored, walk, walk_kinds
from monarch_sync.inotify import Inotify
from monarch_sync.outer_rules import OuterRules
from monarch_sync.watched_folders import WatchedFolders
from monarch_sync.workspace import Folder, Workspace

__all__ = ["CannotWatch", "LiveWatch"]

_COOKIE_SECONDS = 1.0
_RULE_FILES = frozenset({".gitignore", ".monarchignore", "pyvenv.cfg"})
_TICK_NS = 20_000_000


class CannotWatch(Exception):
    """Events would not tell everything here; the text says why."""


class LiveWatch:
    """Begins when it is made: what is touched from then on is not missed, or `catch_up` says so.

    ``folders.touched`` gathers it. Raises ``WorkspaceMissing``, and ``CannotWatch``.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        for folder in workspace.folders:
            folder.check()
            if not tells_all(str(folder.local)):
                raise CannotWatch(_untold(str(folder.local)))
        try:
            self._queue = Inotify()
        except OSError as error:
            raise CannotWatch(_why_not(error)) from None
        self.folders = WatchedFolders(self._queue)
        self._closed: set[tuple[Folder, str]] = set()  # what could not be looked into
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
        """Give the watches back."""
        self._queue.close()

    @property
    def git_locks(self) -> list[str]:
        """The files that are there while git is at work in a folder."""
        return [rules.lock for rules in self._rules if rules.lock]

    def wait(self, seconds: float | None, waker: int = -1) -> bool:
        """Until there are events; whether there are. A byte in ``waker`` ends it early."""
        return self._queue.wait(seconds, waker)

    def read(self) -> None:
        """Take in the events that are there."""
        self.folders.take(self._queue.read(), time.monotonic())

    def catch_up(self) -> bool:
        """Take in the events of all that was done before this call; whether none is missing."""
        try:
            if not self._are_the_same():
                return False
            return self._read_to_cookie() and self.is_sound()
        except OSError:
            return False

    def is_sound(self) -> bool:
        """Have new folders watched; whether a look at what was touched is enough.

        It is not where events were lost, rules have changed, a folder is another one now, or one
        can be looked into that could not before.
        """
        folders = self.folders
        try:
            if folders.is_lost or not self._are_the_same():
                return False
            if any(rules.have_changed() for rules in self._rules):
                return False
            if any(self._is_open(*closed) for closed in self._closed):
                return False  # No event may tell: what is in it was not watched.
            if any(path.rpartition("/")[2] in _RULE_FILES for path in folders.touched):
                return False
            self._cover_fresh()
        except (OSError, CannotWatch):
            return False  # Who begins anew finds out why.
        return True

    def _are_the_same(self) -> bool:
        return all(_identity(path) == known for path, known in self._identities.items())

    def _watch(self) -> None:
        folders = self._workspace.folders
        for folder in folders:
            self.folders.add_root(str(folder.local))
        self._identities = {str(folder.local): _identity(str(folder.local)) for folder in folders}
        patterns = self._workspace.ignore
        self._rules = [OuterRules(f.local, patterns) for f in folders if f.follows_git]
        for folder in folders:
            self._cover(folder)

    def _cover(self, folder: Folder, below: str = "") -> None:
        """Watch the folders inside, again until the last look has found none that is new."""
        while True:
            began_ns = time.time_ns() - _TICK_NS
            youngest_ns, is_new = 0, False
            for relative, status in self._folders_inside(folder, below):
                changed_ns = max(status.st_mtime_ns, status.st_ctime_ns)
                youngest_ns = max(youngest_ns, changed_ns)
                is_new |= self.folders.add(str(folder.local), relative)
            # What was written to while we listed may hold what we have not seen.
            if not is_new or not (below or youngest_ns >= began_ns):
                return

    def _folders_inside(self, folder: Folder, below: str) -> Iterator[tuple[str, os.stat_result]]:
        root, patterns = str(folder.local), self._workspace.ignore
        device = self._identities[root][0]
        uses_git = folder.follows_git
        on_error = self._note_closed(folder)
        listed = dict(
            walk_kinds(folder.local, patterns, below, on_error=on_error, uses_git=uses_git)
        )
        if not below and uses_git:
            with contextlib.suppress(OSError):  # The rules tell when it can be read again.
                tracked = tracked_though_ignored(folder.local, patterns, listed)
                above = {part for path in tracked for part in folders_above(path)}
                listed.update(dict.fromkeys(sorted(above), True))
        for relative, is_dir in listed.items():
            if not is_dir:
                continue
            try:
                status = os.lstat(f"{root}/{relative}")
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode):
                if status.st_dev != device and not tells_all(f"{root}/{relative}"):
                    raise CannotWatch(_untold(f"{root}/{relative}"))
                yield relative, status

    def _cover_fresh(self) -> None:
        """Watch folders that have appeared, if rules say that they belong to us."""
        by_parent: dict[str, list[str]] = {}
        if not all(self._is_plain(*move) for move in self.folders.moves):
            self.folders.moves.clear()
        moved = {new for _, new in self.folders.moves}
        for path in self.folders.take_fresh() - moved:
            by_parent.setdefault(os.path.dirname(path), []).append(path)
        # Folders above first: who is inside one that is new is found with it.
        for parent, paths in sorted(by_parent.items()):
            for folder in self._workspace.folders:
                root = str(folder.local)
                if parent == root or parent.startswith(root + "/"):
                    self._cover_wanted(folder, parent[len(root) + 1 :], paths)

    def _is_plain(self, old: str, new: str) -> bool:
        """Whether a folder that got another name belongs to us as it did, with the same content."""
        patterns = self._workspace.ignore
        for folder in self._workspace.folders:
            above = f"{folder.local}/"
            if old.startswith(above) and new.startswith(above):
                names = old[len(above) :], new[len(above) :]
                if not judges_alike(folder.local, patterns, *names, uses_git=folder.follows_git):
                    return False
        return True

    def _cover_wanted(self, folder: Folder, parent: str, paths: list[str]) -> None:
        root = str(folder.local)
        patterns, uses_git = self._workspace.ignore, folder.follows_git
        on_error = self._note_closed(folder)
        wanted = set(
            walk(folder.local, patterns, parent, depth=1, on_error=on_error, uses_git=uses_git)
        )
        for path in paths:
            relative = path[len(root) + 1 :]
            if relative in wanted:
                self.folders.add(root, relative)
                self._cover(folder, relative)

    def _note_closed(self, folder: Folder) -> Callable[[str, OSError], None]:
        def note(relative: str, error: OSError) -> None:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                self._closed.add((folder, relative))

        return note

    def _is_open(self, folder: Folder, relative: str) -> bool:
        errors: list[str] = []
        found = walk(
            folder.local, self._workspace.ignore, relative, depth=1,
            on_error=lambda at, error: errors.append(at), uses_git=folder.follows_git,
        )  # fmt: skip
        list(found)
        return not errors

    def _read_to_cookie(self) -> bool:
        """Write a cookie, and take in events until it comes; whether it came."""
        fd = _open_cookie(next(iter(self._identities), ""))
        try:
            number = self._queue.watch_file(f"/proc/self/fd/{fd}")
            os.write(fd, b"\1")
            deadline = time.monotonic() + _COOKIE_SECONDS
            while True:
                events = self._queue.read()
                self.folders.take(events, time.monotonic())
                if any(event.watch == number for event in events):
                    return True
                left = deadline - time.monotonic()
                if left <= 0 or self.folders.is_lost:
                    return False
                self._queue.wait(left)
        finally:
            os.close(fd)


def _open_cookie(folder: str) -> int:
    """A file to write to that nobody else ever sees: it has no name, and ends with us."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        # A folder that is read-only, or whose file system cannot. The queue is one for all.
        fd, path = tempfile.mkstemp(prefix="monarch-cookie-")
        os.unlink(path)
        return fd


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _untold(path: str) -> str:
    return f"the file system of {path} does not tell of all changes"


def _why_not(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return (
            "the system has no inotify watches left: "
            "raise fs.inotify.max_user_watches, or leave more folders out"
        )
    if error.errno == errno.EMFILE:
        return "the system has no inotify instances left: raise fs.inotify.max_user_instances"
    return str(error)
