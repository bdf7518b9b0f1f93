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

from monarch_sync.content.disk import Disk
from monarch_sync.content.stamps import Stamps, digest_of, lstat
from monarch_sync.replicas.conflict_copies import ConflictCopies
from monarch_sync.replicas.parents import ParentFolders
from monarch_sync.replicas.patch_file import Patch
from monarch_sync.replicas.ready import SECOND_NS, ReadyContent, Swap, time_after
from monarch_sync.replicas.staging import Staging
from monarch_sync.replicas.store import ContentStore
from monarch_sync.replicas.whole_folders import WholeFolders
from monarch_sync.tree.diff import SyncPlan
from monarch_sync.tree.entry import Entry, parent_of
from monarch_sync.tree.manifest import Manifest

_NOTHING = ReadyContent("")


class Committer:
    """Carries out one plan below ``root``; ``old`` is the state that the plan starts from.
    ``is_repeated``: an earlier try may have carried out a part of it."""

    def __init__(
        self, root: str, staging: Staging, store: ContentStore, disk: Disk, stamps: Stamps,
        folders: WholeFolders, old: Manifest, *, is_repeated: bool,
    ) -> None:  # fmt: skip
        self._root = root
        self._is_repeated = is_repeated
        self._folders = folders
        self._stamps = stamps
        self._staging = staging
        self._store = store
        self._disk = disk
        self._old = old
        self._conflicts = ConflictCopies(root, store, disk, stamps, old)
        self._parents = ParentFolders(root, disk, self._conflicts)
        self._whole: set[str] = set()  # folders that were put in their place with all in them
        self._bytecode: dict[str, list[str]] = {}
        self._swapped: list[Swap] = []
        self._put: list[tuple[str, bytes, int]] = []
        self._replaced: deque[tuple[str, bytes, os.stat_result]] = deque()
        self._patched: deque[tuple[str, Patch]] = deque()
        self.lost: list[str] = []  # paths whose staged content is gone, so not as planned

    def carry_out(self, plan: SyncPlan, new: Manifest) -> list[str]:
        """Carry out the plan, so that the folder holds `new`.

        Returns the new names of files that were changed on the host and are kept.
        """
        for before, after in plan.folders_moved:
            self._move_folder(before, after)
        for entry in plan.removes:
            self._remove(entry)
        for top, place in self._staging.tops.items():
            self._put_whole(top, place)
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
        """Return the folders that were closed to writing and that this commit opened. In a repeated
        plan, the first try may have opened any of them, so all folders whose mode is closed are
        returned."""
        opened = self._parents.opened
        if not self._is_repeated:
            return opened
        return [*opened, *(e.path for e in new if e.is_dir and e.mode & 0o300 != 0o300)]

    def settle(self) -> None:
        """Move the replaced files to the store. This can wait until the commit has been answered.

        The caller may call it again if it fails.
        """
        while self._swapped:
            swap = self._swapped.pop()
            if swap.is_stored:
                self._store.gone(swap.new)
            self._replaced.append((swap.place, swap.old, swap.before))
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

    def _put_whole(self, top: str, place: str) -> None:
        path = f"{self._root}/{top}"
        self._parents.make_sound(parent_of(top))
        if lstat(path) is None:
            self._disk.rename(place, path)
            inside = f"{top}/"
            self._whole.update(
                path for path in self._staging.folders if path == top or path.startswith(inside)
            )

    def _move_folder(self, before: str, after: str) -> None:
        source, target = f"{self._root}/{before}", f"{self._root}/{after}"
        self._parents.make_sound(parent_of(after))
        if lstat(source) is None or self._parents.leads_astray(before):
            return  # done already
        self._parents.open(parent_of(before))
        if lstat(target) is not None:
            if self._is_repeated and self._has_moved(before, after):
                return
            self._conflicts.keep(after, None, self._disk.move)
        if parent_of(before) != parent_of(after):
            self._parents.open(before)  # The folder that `..` is in it changes.
        self._disk.rename(source, target)
        if before in self._parents.opened:
            self._parents.opened.append(after)

    def _has_moved(self, before: str, after: str) -> bool:
        """Return whether a folder has been moved already: the new name has our folder, or the old
        name has not."""
        node = self._old.folder(before)
        return self._folders.holds(after, node) or not self._folders.holds(before, node)

    def _set_mode(self, entry: Entry) -> None:
        path = f"{self._root}/{entry.path}"
        if self._parents.leads_astray(entry.path):
            return
        status = lstat(path)
        if status is None or stat.S_ISDIR(status.st_mode) != entry.is_dir:
            return  # Taken away, or replaced, on the host: theirs now.
        # A folder that we may not enter is one that no later push could mend.
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
            # A folder with files of the host's own stays.
            if entry.is_dir:
                self._remove_folder(path)
        elif entry.is_file and stat.S_ISREG(status.st_mode):
            self._drop_bytecode(path)
            self._conflicts.clear(entry.path, status)
        elif entry.is_link and stat.S_ISLNK(status.st_mode):
            self._disk.unlink(path)

    def _remove_folder(self, path: str) -> None:
        """Delete a folder, unless it contains files of the host's own."""
        with contextlib.suppress(OSError):
            self._disk.remove_folder(f"{path}/__pycache__")  # empty once our bytecode is gone
        try:
            if not os.listdir(path):
                self._disk.remove_folder(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.EBUSY:  # Something is mounted there.
                raise

    def _drop_bytecode(self, path: str) -> None:
        """Delete the bytecode that Python compiled from a file of ours."""
        folder, _, name = path.rpartition("/")
        stem, extension = os.path.splitext(name)
        if extension != ".py":
            return
        if folder not in self._bytecode:
            self._bytecode[folder] = _names_in(f"{folder}/__pycache__")
        for compiled in self._bytecode[folder]:
            if compiled.startswith(f"{stem}.") and compiled.endswith(".pyc"):
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(f"{folder}/__pycache__/{compiled}")

    def _swap(self, swap: Swap) -> bool:
        """Exchange a staged file with the file that it replaces; return False, without a change, if
        that file has changed since we looked at it."""
        if swap.folder not in self._parents.sound:
            self._parents.make_sound(swap.folder)
        if not _is_unchanged(swap.before, lstat(swap.path)):
            return False
        self._disk.exchange(swap.place, swap.path)
        self._swapped.append(swap)
        return True

    def _put_file(self, entry: Entry) -> None:
        name = entry.path
        path = f"{self._root}/{name}"
        self._parents.make_sound(parent_of(name))
        ready = self._staging.ready.get(name, _NOTHING)
        before, digest = lstat(path), ready.digest
        if not _is_unchanged(ready.before, before):
            digest = None if before is None else self._stamps.digest_of(path, before)
        if before is not None and digest == entry.digest:
            self._give_mode(path, before, entry.mode)
            return
        place = ready.place
        if ready.patch is not None and before is not None and digest == ready.digest:
            self._patch(path, ready.patch, place, before)
            self._give_mode(path, before, entry.mode)
            return
        if not place or ready.patch is not None:
            self.lost.append(name)
            return
        mtime_ns = ready.mtime_ns
        if ready.is_linked:
            status = os.lstat(place)
            if _is_meddled_with(place, status, ready, entry):
                self.lost.append(name)
                return
            self._give_mode(place, status, entry.mode)
            if before is not None:
                self._make_younger(place, status, path, before)
        elif entry.mode & 0o600 != 0o600:
            self._disk.chmod(place, entry.mode)
        if before is None:
            self._disk.rename(place, path)
        elif digest is not None and _has_digest(self._old.get(name), digest):
            self._disk.exchange(place, path)
            self._replaced.append((place, digest, before))
        else:
            self._conflicts.give_way(name, before, digest)
            self._disk.rename(place, path)
        if ready.is_stored:
            self._store.gone(entry.digest)
        self._put.append((path, entry.digest, mtime_ns))

    def _look_at_linked(self, entry: Entry) -> None:
        """Check a file that came with its whole new folder and is a second name of an old file.
        Drop it if a program has changed it by its old name."""
        path = f"{self._root}/{entry.path}"
        status, ready = os.lstat(path), self._staging.ready[entry.path]
        if _is_meddled_with(path, status, ready, entry):
            self._disk.unlink(path)
            self.lost.append(entry.path)
        else:
            self._give_mode(path, status, entry.mode)

    def _patch(self, path: str, patch: Patch, place: str, before: os.stat_result) -> None:
        mtime = time_after(before)
        assert mtime is not None
        self._disk.overwrite(path, patch.writes, patch.size, mtime)
        self._patched.append((place, patch))
        self._put.append((path, patch.digest, mtime * SECOND_NS))

    def _give_mode(self, path: str, status: os.stat_result, mode: int) -> None:
        if stat.S_IMODE(status.st_mode) == mode:
            return
        try:
            self._disk.chmod(path, mode)
        except PermissionError:
            # A folder that is not ours keeps its mode; their file gives way to one like it.
            if stat.S_ISREG(status.st_mode):
                beside = f"{self._staging.folder}/mode.part"
                self._disk.copy(path, beside, mode)
                self._disk.rename(beside, path)

    def _make_younger(
        self, staged: str, status: os.stat_result, path: str, before: os.stat_result
    ) -> None:
        """Give a file that replaces a source file another time than the old file. Python takes
        bytecode for fresh if the source's size and its mtime in whole seconds match."""
        if path.endswith(".py") and int(status.st_mtime) <= int(before.st_mtime):
            self._disk.set_time(staged, int(before.st_mtime) + 1)

    def _put_link(self, entry: Entry) -> None:
        path = f"{self._root}/{entry.path}"
        self._parents.make_sound(parent_of(entry.path))
        before = lstat(path)
        if before is not None:
            if stat.S_ISLNK(before.st_mode) and os.readlink(path) == entry.target:
                return
            digest = self._stamps.digest_of(path, before)
            self._conflicts.give_way(entry.path, before, digest)
        beside = f"{self._staging.folder}/link.part"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        self._disk.make_link(beside, entry.target)
        self._disk.rename(beside, path)


def _is_meddled_with(path: str, status: os.stat_result, ready: ReadyContent, entry: Entry) -> bool:
    """Return whether a program has written to a staged file, by its other name, since we looked."""
    return status.st_mtime_ns != ready.mtime_ns and digest_of(path) != entry.digest


def _has_digest(entry: Entry | None, digest: bytes) -> bool:
    return entry is not None and entry.digest == digest


def _is_unchanged(before: os.stat_result | None, now: os.stat_result | None) -> bool:
    if before is None or now is None:
        return before is now
    return (
        before.st_ctime_ns == now.st_ctime_ns
        and before.st_mtime_ns == now.st_mtime_ns
        and before.st_ino == now.st_ino
        and before.st_size == now.st_size
    )


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
