"""Commit: take a replica from one state to another, in steps that may be repeated.

Every step looks at the disk before it acts. So an interrupted plan can be carried out again from
its start: steps that are done already are recognised.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import deque

from monarch_sync.content.stamps import digest_of, lstat
from monarch_sync.replicas.conflict_copies import ConflictCopies
from monarch_sync.replicas.on_disk import OnDisk
from monarch_sync.replicas.patch_file import Patch
from monarch_sync.replicas.ready import SECOND_NS, ReadyContent, Swap, time_after
from monarch_sync.replicas.staging import Staging
from monarch_sync.replicas.whole_folders import WholeFolders
from monarch_sync.tree.diff import SyncPlan
from monarch_sync.tree.entry import Entry, folders_above, parent_of
from monarch_sync.tree.manifest import Manifest

_NOTHING = ReadyContent("")


class Committer:
    """Carries out one plan, which starts from the state ``old``.

    ``is_repeated``: an earlier attempt was interrupted; moves that it has made are not made again.
    """

    def __init__(
        self,
        on_disk: OnDisk,
        staging: Staging,
        folders: WholeFolders,
        old: Manifest,
        *,
        is_repeated: bool,
    ) -> None:
        self._root = on_disk.root
        self._is_repeated = is_repeated
        self._folders = folders
        self._stamps = on_disk.stamps
        self._staging = staging
        self._store = on_disk.store
        self._disk = on_disk.disk
        self._old = old
        #: What makes room for new entries where a program has put files of its own.
        self._conflicts = ConflictCopies(on_disk, old)
        self._parents = ParentFolders(on_disk, self._conflicts)
        #: New folders that were moved to their path with all their content.
        self._whole: set[str] = set()
        #: The names in `__pycache__`, by the path of the folder that contains it.
        self._bytecode: dict[str, list[str]] = {}
        #: Exchanges that were made; `settle` moves the old files to the store.
        self._swapped: list[Swap] = []
        #: Written files, as (path, digest, mtime), whose digests `settle` remembers.
        self._put: list[tuple[str, bytes, int]] = []
        #: Replaced files, as (path in the staging folder, digest, status), for the store.
        self._replaced: deque[tuple[str, bytes, os.stat_result]] = deque()
        #: Patches that were applied, with the paths of their notes, for the store.
        self._patched: deque[tuple[str, Patch]] = deque()
        #: Paths that were not written as planned, because their staged content is gone.
        self.lost: list[str] = []

    def carry_out(self, plan: SyncPlan, new: Manifest) -> list[str]:
        """Carry out the plan, so that the folder has the state `new`; return the new names of
        files that were changed on the host and are kept."""
        for old_path, new_path in plan.folders_moved:
            self._move_folder(old_path, new_path)
        for entry in plan.removes:
            self._remove(entry)
        for top, staged in self._staging.tops.items():
            self._put_whole(top, staged)
        whole, changes_modes = self._whole, []
        for entry in plan.folders:
            if entry.path not in whole:
                self._parents.make_sound(entry.path)
                changes_modes.append(entry)
            elif entry.mode & 0o700 != 0o700:
                changes_modes.append(entry)
        swaps = self._staging.swaps
        for entry in plan.files:
            swap = swaps.get(entry.path)
            if swap is not None and self._swap(swap):
                continue
            if not whole or parent_of(entry.path) not in whole:
                self._put_file(entry)
            elif self._staging.ready[entry.path].is_linked:
                self._look_at_linked(entry)
            elif entry.mode & 0o600 != 0o600:
                changes_modes.append(entry)
        for entry in plan.links:
            if parent_of(entry.path) not in whole:
                self._put_link(entry)
        for entry in (*plan.modes, *reversed(changes_modes)):
            self._set_mode(entry)
        for folder in self._opened(new):
            opened = new.get(folder)
            if opened is not None and opened.is_dir:
                self._set_mode(opened)
        return self._conflicts.kept

    def _opened(self, new: Manifest) -> list[str]:
        """Return the folders that were closed to writing and that this commit opened.

        If the plan is repeated, the interrupted attempt may have opened folders, too. So all
        folders that have a closed mode in ``new`` are returned as well.
        """
        opened = self._parents.opened
        if not self._is_repeated:
            return opened
        return [*opened, *(e.path for e in new if e.is_dir and e.mode & 0o300 != 0o300)]

    def settle(self) -> None:
        """Move the replaced files to the store. Call it after the commit has been answered; if it
        raises, call it again.
        """
        while self._swapped:
            swap = self._swapped.pop()
            if swap.is_stored:
                self._store.gone(swap.new)
            self._replaced.append((swap.source, swap.old, swap.status))
            self._put.append((swap.path, swap.new, swap.mtime_ns))
        while self._replaced:
            with contextlib.suppress(FileNotFoundError):
                self._store.take(*self._replaced[0])
            self._replaced.popleft()
        while self._patched:
            with contextlib.suppress(FileNotFoundError):
                self._store.take_patch(*self._patched[0])
            self._patched.popleft()
        for path, digest, mtime_ns in self._put:
            if (status := lstat(path)) is not None:
                self._stamps.note(status, digest, mtime_ns)
        self._put.clear()

    def _put_whole(self, top: str, staged: str) -> None:
        path = f"{self._root}/{top}"
        self._parents.make_sound(parent_of(top))
        if lstat(path) is None:
            self._disk.rename(staged, path)
            inside = f"{top}/"
            self._whole.update(
                path for path in self._staging.folders if path == top or path.startswith(inside)
            )

    def _move_folder(self, old_path: str, new_path: str) -> None:
        source, target = f"{self._root}/{old_path}", f"{self._root}/{new_path}"
        self._parents.make_sound(parent_of(new_path))
        if lstat(source) is None or self._parents.leads_astray(old_path):
            return  # done already
        self._parents.open(parent_of(old_path))
        if lstat(target) is not None:
            if self._is_repeated and self._has_moved(old_path, new_path):
                return
            self._conflicts.keep(new_path, None, self._disk.move)
        if parent_of(old_path) != parent_of(new_path):
            self._parents.open(old_path)  # The folder that `..` is in it changes.
        self._disk.rename(source, target)
        if old_path in self._parents.opened:
            self._parents.opened.append(new_path)

    def _has_moved(self, old_path: str, new_path: str) -> bool:
        """Return whether a folder has been moved already, by the names that ``self._old`` has in
        it.

        It has been moved if the new path has exactly these names, or if the old path does not.
        """
        node = self._old.folder(old_path)
        return self._folders.holds(new_path, node) or not self._folders.holds(old_path, node)

    def _set_mode(self, entry: Entry) -> None:
        path = f"{self._root}/{entry.path}"
        if self._parents.leads_astray(entry.path):
            return
        status = lstat(path)
        if status is None or stat.S_ISDIR(status.st_mode) != entry.is_dir:
            return  # A program of the host has deleted or replaced it.
        # No later push could write to a folder that we may not enter.
        mode = entry.mode | 0o500 if entry.is_dir else entry.mode
        if not stat.S_ISLNK(status.st_mode):
            self._give_mode(path, status, mode)

    def _remove(self, entry: Entry) -> None:
        path = f"{self._root}/{entry.path}"
        if self._parents.leads_astray(entry.path):
            return
        status = lstat(path)
        if status is None:
            return
        self._parents.open(parent_of(entry.path))
        if stat.S_ISDIR(status.st_mode):
            # A folder that contains files of the host's own is not deleted.
            if entry.is_dir:
                self._remove_folder(path)
        elif entry.is_file and stat.S_ISREG(status.st_mode):
            self._drop_bytecode(path)
            self._conflicts.clear(entry.path, status)
        elif entry.is_link and stat.S_ISLNK(status.st_mode):
            self._disk.unlink(path)

    def _remove_folder(self, path: str) -> None:
        """Delete a folder, with an empty ``__pycache__`` in it. It stays if it has anything else in
        it, or is a mount point."""
        with contextlib.suppress(OSError):
            self._disk.remove_folder(f"{path}/__pycache__")  # empty once our bytecode is gone
        try:
            if not os.listdir(path):
                self._disk.remove_folder(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.EBUSY:  # a mount point
                raise

    def _drop_bytecode(self, path: str) -> None:
        """Delete the bytecode that Python has compiled from a file of the workspace."""
        folder, _, name = path.rpartition("/")
        stem, extension = os.path.splitext(name)
        if extension != ".py":
            return
        if folder not in self._bytecode:
            self._bytecode[folder] = []
            with contextlib.suppress(OSError):
                self._bytecode[folder] = os.listdir(f"{folder}/__pycache__")
        for compiled in self._bytecode[folder]:
            if compiled.startswith(f"{stem}.") and compiled.endswith(".pyc"):
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(f"{folder}/__pycache__/{compiled}")

    def _swap(self, swap: Swap) -> bool:
        """Exchange a staged file with the file that it replaces. Return False, without a change, if
        that file has changed since the stage looked at it."""
        if swap.folder not in self._parents.sound:
            self._parents.make_sound(swap.folder)
        if not _is_unchanged(swap.status, lstat(swap.path)):
            return False
        self._disk.exchange(swap.source, swap.path)
        self._swapped.append(swap)
        return True

    def _put_file(self, entry: Entry) -> None:
        name = entry.path
        path = f"{self._root}/{name}"
        self._parents.make_sound(parent_of(name))
        ready = self._staging.ready.get(name, _NOTHING)
        status, digest = lstat(path), ready.digest
        if not _is_unchanged(ready.status, status):
            digest = None if status is None else self._stamps.digest_of(path, status)
        if status is not None and digest == entry.digest:
            self._give_mode(path, status, entry.mode)
            return
        source = ready.source
        if ready.patch is not None and status is not None and digest == ready.digest:
            self._patch(path, ready.patch, source, status)
            self._give_mode(path, status, entry.mode)
            return
        if not source or ready.patch is not None:
            self.lost.append(name)
            return
        mtime_ns = ready.mtime_ns
        if ready.is_linked:
            source_status = os.lstat(source)
            if _is_meddled_with(source, source_status, ready, entry):
                self.lost.append(name)
                return
            self._give_mode(source, source_status, entry.mode)
            # Python takes bytecode for fresh if the source's size and its mtime in whole seconds
            # match, so a source file gets a later time than the file that it replaces.
            second = int(status.st_mtime) if status is not None else -1
            if path.endswith(".py") and int(source_status.st_mtime) <= second:
                self._disk.set_time(source, second + 1)
        elif entry.mode & 0o600 != 0o600:
            self._disk.chmod(source, entry.mode)
        old_entry = self._old.get(name)
        if status is None:
            self._disk.rename(source, path)
        elif old_entry is not None and digest is not None and old_entry.digest == digest:
            self._disk.exchange(source, path)
            self._replaced.append((source, digest, status))
        else:
            self._conflicts.give_way(name, status, digest)
            self._disk.rename(source, path)
        if ready.is_stored:
            self._store.gone(entry.digest)
        self._put.append((path, entry.digest, mtime_ns))

    def _look_at_linked(self, entry: Entry) -> None:
        """Check a new file that shares its content with an old file, as a hard link.

        Its folder was moved into place as a whole. If a program has changed the content through the
        old file's name, the new file is deleted and counts as lost.
        """
        path = f"{self._root}/{entry.path}"
        status, ready = os.lstat(path), self._staging.ready[entry.path]
        if _is_meddled_with(path, status, ready, entry):
            self._disk.unlink(path)
            self.lost.append(entry.path)
        else:
            self._give_mode(path, status, entry.mode)

    def _patch(self, path: str, patch: Patch, note: str, status: os.stat_result) -> None:
        mtime = time_after(status)
        assert mtime is not None
        self._disk.overwrite(path, patch.writes, patch.size, mtime)
        self._patched.append((note, patch))
        self._put.append((path, patch.digest, mtime * SECOND_NS))

    def _give_mode(self, path: str, status: os.stat_result, mode: int) -> None:
        if stat.S_IMODE(status.st_mode) == mode:
            return
        try:
            self._disk.chmod(path, mode)
        except PermissionError:
            # A folder of another user keeps its mode; a file is replaced by a copy of ours.
            if stat.S_ISREG(status.st_mode):
                beside = f"{self._staging.folder}/mode.part"
                self._disk.copy(path, beside, mode)
                self._disk.rename(beside, path)

    def _put_link(self, entry: Entry) -> None:
        path = f"{self._root}/{entry.path}"
        self._parents.make_sound(parent_of(entry.path))
        status = lstat(path)
        if status is not None:
            if stat.S_ISLNK(status.st_mode) and os.readlink(path) == entry.target:
                return
            digest = self._stamps.digest_of(path, status)
            self._conflicts.give_way(entry.path, status, digest)
        beside = f"{self._staging.folder}/link.part"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        self._disk.make_link(beside, entry.target)
        self._disk.rename(beside, path)


class ParentFolders:
    """Makes sure, for one commit, that the parent folders of the files that it writes are real
    folders and open to writing."""

    def __init__(self, on_disk: OnDisk, conflicts: ConflictCopies) -> None:
        self._root = on_disk.root
        self._disk = on_disk.disk
        self._conflicts = conflicts
        self._user = os.geteuid()
        self._writable: set[str] = set()
        #: Folders that have been checked.
        self.sound: set[str] = {""}
        #: Folders that were closed to writing, and were opened for the commit.
        self.opened: list[str] = []

    def make_sound(self, folder: str) -> None:
        """Make sure that ``folder`` and all above it are real folders inside the root."""
        if folder in self.sound:
            return
        self.make_sound(parent_of(folder))
        path = f"{self._root}/{folder}"
        status = lstat(path)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            self._conflicts.clear(folder, status)
            status = None
        if status is None:
            self._disk.make_folder(path)
        elif status.st_mode & 0o300 != 0o300 or status.st_uid != self._user:
            self.open(folder)
        self.sound.add(folder)

    def open(self, folder: str) -> None:
        """Make sure that we may write to an existing folder."""
        if folder in self.sound or folder in self._writable:
            return
        path = f"{self._root}/{folder}"
        if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
            self._disk.chmod(path, stat.S_IMODE(os.stat(path).st_mode) | 0o700)
            self.opened.append(folder)
        self._writable.add(folder)

    def leads_astray(self, name: str) -> bool:
        """Return whether a folder above ``name`` is a link, so that the path may lead outside of
        the replica's folder."""
        return any(os.path.islink(f"{self._root}/{folder}") for folder in folders_above(name))


def _is_meddled_with(path: str, status: os.stat_result, ready: ReadyContent, entry: Entry) -> bool:
    """Return whether a program has written to a staged file since it was staged. A program can
    reach the file if it has a second name.
    """
    return status.st_mtime_ns != ready.mtime_ns and digest_of(path) != entry.digest


def _is_unchanged(old: os.stat_result | None, new: os.stat_result | None) -> bool:
    if old is None or new is None:
        return old is new
    return (
        old.st_ctime_ns == new.st_ctime_ns
        and old.st_mtime_ns == new.st_mtime_ns
        and old.st_ino == new.st_ino
        and old.st_size == new.st_size
    )
