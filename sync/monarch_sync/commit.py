"""From one state of a replica to another, in steps that may be repeated.

Every step looks at what is there before it acts, so that a plan that was cut short can be carried
out again from its start: what is done already is seen to be done.
"""

from __future__ import annotations

import contextlib
import glob
import os
import stat
from collections import Counter
from collections.abc import Callable

from monarch_sync.diff import Plan
from monarch_sync.digest import short
from monarch_sync.disk import Disk
from monarch_sync.entry import Entry, parent_of
from monarch_sync.manifest import Manifest
from monarch_sync.staging import Staging
from monarch_sync.stamps import Stamps
from monarch_sync.store import Store

__all__ = ["Committer"]

_Rename = Callable[[str, str], None]


class Committer:
    """Carries one plan out below ``root``; ``old`` is the state that the plan starts from."""

    def __init__(
        self, root: str, staging: Staging, store: Store, disk: Disk, stamps: Stamps, old: Manifest
    ) -> None:
        self._root = root
        self._stamps = stamps
        self._staging = staging
        self._store = store
        self._disk = disk
        self._old = old
        self._kept: list[str] = []
        self._sound: set[str] = {""}
        self._open_ones: set[str] = set()
        self._uses: Counter[bytes] = Counter()
        self.lost: list[str] = []  # paths whose staged content is gone, so not as planned

    def carry_out(self, plan: Plan, new: Manifest) -> list[str]:
        """Do it, so that `new` is what is here; the names of files that were changed on the host
        and are kept under them."""
        self._uses = Counter(entry.digest for entry in plan.files)
        for before, after in plan.folders_moved:
            self._move_folder(before, after)
        for entry in plan.removes:
            self._remove(entry)
        for entry in plan.folders:
            self._make_sound(entry.path)
        for entry in plan.files:
            self._put_file(entry)
        for entry in plan.links:
            self._put_link(entry)
        for entry in (*plan.modes, *reversed(plan.folders)):
            self._set_mode(entry)
        for folder in self._open_ones:
            # A folder that nobody may write to was opened for us.
            opened = new.get(folder)
            if opened is not None and opened.is_dir:
                self._set_mode(opened)
        return self._kept

    def _move_folder(self, before: str, after: str) -> None:
        source, target = f"{self._root}/{before}", f"{self._root}/{after}"
        self._make_sound(parent_of(after))
        if _lstat(source) is None or self._leads_astray(before):
            return  # done already
        status = _lstat(target)
        self._open(parent_of(before))
        if status is not None:
            self._keep(after, target, "0" * 8, self._disk.rename)
        self._disk.rename(source, target)

    def _set_mode(self, entry: Entry) -> None:
        path = f"{self._root}/{entry.path}"
        if self._leads_astray(entry.path):
            return
        status = _lstat(path)
        if status is None or stat.S_ISDIR(status.st_mode) != entry.is_dir:
            return  # Taken away, or replaced, on the host: theirs now.
        if not stat.S_ISLNK(status.st_mode) and stat.S_IMODE(status.st_mode) != entry.mode:
            self._disk.chmod(path, entry.mode)

    def _remove(self, entry: Entry) -> None:
        path = f"{self._root}/{entry.path}"
        if self._leads_astray(entry.path):
            return  # Somebody put a link in the way; what lies behind it is not ours.
        status = _lstat(path)
        if status is None:
            return
        self._open(parent_of(entry.path))
        if stat.S_ISDIR(status.st_mode):
            # A folder with files of the host's own stays.
            if entry.is_dir:
                self._remove_folder(path)
        elif entry.is_file and stat.S_ISREG(status.st_mode):
            self._drop_bytecode(path)
            self._set_aside(entry.path, path, status, self._stamps.digest_of(path))
        elif entry.is_link and stat.S_ISLNK(status.st_mode):
            self._disk.unlink(path)

    def _remove_folder(self, path: str) -> None:
        """Take a folder away, unless it has files of the host's own."""
        with contextlib.suppress(OSError):
            self._disk.remove_folder(f"{path}/__pycache__")  # empty once our bytecode is gone
        with contextlib.suppress(FileNotFoundError):
            if not os.listdir(path):
                self._disk.remove_folder(path)

    def _drop_bytecode(self, path: str) -> None:
        """Python's compiled form of a file of ours goes with it."""
        folder, _, name = path.rpartition("/")
        stem, extension = os.path.splitext(name)
        if extension == ".py" and os.path.isdir(f"{folder}/__pycache__"):
            pattern = f"{glob.escape(folder)}/__pycache__/{glob.escape(stem)}.*.pyc"
            for compiled in glob.glob(pattern):
                self._disk.unlink(compiled)

    def _put_file(self, entry: Entry) -> None:
        staged = self._staging.place(entry.digest)
        path = f"{self._root}/{entry.path}"
        self._make_sound(parent_of(entry.path))
        before = _lstat(path)
        digest: bytes | None = None
        if before is not None and stat.S_ISREG(before.st_mode):
            digest = self._stamps.digest_of(path)
            if before.st_size == entry.size and digest == entry.digest:
                self._give_mode(path, before, entry.mode)
                return
        status = _lstat(staged)
        if status is None:
            self.lost.append(entry.path)
            return
        if self._uses[entry.digest] > 1:
            part = f"{staged}.part"
            self._disk.copy(staged, part, entry.mode)
            staged = part
        else:
            self._give_mode(staged, status, entry.mode)
        if before is not None:
            self._make_younger(staged, status, path, before)
            self._give_way(entry.path, path, before, digest)
        self._disk.rename(staged, path)

    def _give_mode(self, path: str, status: os.stat_result, mode: int) -> None:
        if stat.S_IMODE(status.st_mode) != mode:
            self._disk.chmod(path, mode)

    def _make_younger(
        self, staged: str, status: os.stat_result, path: str, before: os.stat_result
    ) -> None:
        """Python takes bytecode for fresh if source size and mtime in whole seconds agree, so
        what replaces a source file must not bear the same second."""
        if path.endswith(".py") and int(status.st_mtime) <= int(before.st_mtime):
            self._disk.set_time(staged, int(before.st_mtime) + 1)

    def _put_link(self, entry: Entry) -> None:
        path = f"{self._root}/{entry.path}"
        self._make_sound(parent_of(entry.path))
        before = _lstat(path)
        if before is not None:
            if stat.S_ISLNK(before.st_mode) and os.readlink(path) == entry.target:
                return
            self._give_way(entry.path, path, before, self._stamps.digest_of(path))
        beside = f"{self._staging.folder}/link.part"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        os.makedirs(self._staging.folder, exist_ok=True)
        self._disk.make_link(beside, entry.target)
        self._disk.rename(beside, path)

    def _give_way(self, name: str, path: str, status: os.stat_result, digest: bytes | None) -> None:
        """See that what stands here may be renamed over: ours is in the store, a file of anybody
        else's has a second name. It stays visible until it is replaced."""
        if stat.S_ISREG(status.st_mode):
            self._set_aside(name, path, status, digest, self._disk.link)
        elif not (stat.S_ISLNK(status.st_mode) and _is(self._old.get(name), "link")):
            self._keep(name, path, "0" * 8, self._disk.rename)

    def _set_aside(
        self, name: str, path: str, status: os.stat_result, digest: bytes | None,
        how: _Rename | None = None,
    ) -> None:  # fmt: skip
        """Save a regular file: in the store if it is as we left it, else kept beside. Without
        ``how`` it is moved there, so that its own place is free."""
        ours = self._old.get(name)
        if ours is None or digest is None or ours.digest != digest:
            mark = short(digest) if digest else "0" * 8
            self._keep(name, path, mark, how or self._disk.rename)
        elif how is None:
            self._store.take(path, digest, status.st_size)
        else:
            self._store.share(path, digest, status.st_size)

    def _keep(self, name: str, path: str, mark: str, how: _Rename) -> None:
        kept = f"{name}.host-{mark}"
        how(path, f"{self._root}/{kept}")
        self._kept.append(kept)

    def _make_sound(self, folder: str) -> None:
        """See that ``folder`` and all above it are real folders inside the root."""
        if folder in self._sound:
            return
        self._make_sound(parent_of(folder))
        path = f"{self._root}/{folder}"
        status = _lstat(path)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            self._clear(folder, path, status)
            status = None
        if status is None:
            self._disk.make_folder(path)
        self._open(folder)
        self._sound.add(folder)

    def _open(self, folder: str) -> None:
        """See that we may write to a folder that is there."""
        path = f"{self._root}/{folder}"
        if folder not in self._open_ones and not os.access(
            path, os.W_OK | os.X_OK, effective_ids=True
        ):
            self._disk.chmod(path, stat.S_IMODE(os.stat(path).st_mode) | 0o700)
        self._open_ones.add(folder)

    def _clear(self, name: str, path: str, status: os.stat_result) -> None:
        """Make room for a folder."""
        if stat.S_ISREG(status.st_mode):
            self._set_aside(name, path, status, self._stamps.digest_of(path))
        elif stat.S_ISLNK(status.st_mode) and _is(self._old.get(name), "link"):
            self._disk.unlink(path)
        else:
            self._keep(name, path, "0" * 8, self._disk.rename)

    def _leads_astray(self, name: str) -> bool:
        """Whether a folder above ``name`` is a link."""
        while name := parent_of(name):
            if os.path.islink(f"{self._root}/{name}"):
                return True
        return False


def _is(entry: Entry | None, kind: str) -> bool:
    return entry is not None and entry.kind.value == kind


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
