"""From one state of a replica to another, in steps that may be repeated.

Every step looks at what is there before it acts, so that a plan that was cut short can be carried
out again from its start: what is done already is seen to be done.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from pathlib import Path

import msgspec

from monarch_sync.diff import Plan
from monarch_sync.digest import digest_stream, short
from monarch_sync.disk import Disk
from monarch_sync.entry import Entry, Row, parent_of
from monarch_sync.manifest import Manifest, decode_paths, encode_paths
from monarch_sync.store import Store

__all__ = ["Committer", "Journal"]


class Journal(msgspec.Struct, array_like=True):
    """What a commit is about to do: enough to do it again from the state that it starts from."""

    generation: int
    author: str
    changed: list[Row]
    removed: list[bytes]

    @classmethod
    def of(cls, generation: int, author: str, old: Manifest, new: Manifest) -> Journal:
        paths = sorted(new.changed_paths(old))
        entries = {path: new.get(path) for path in paths}
        changed = [entry.to_row() for entry in entries.values() if entry is not None]
        removed = encode_paths(path for path, entry in entries.items() if entry is None)
        return cls(generation, author, changed, removed)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Journal:
        return msgspec.msgpack.decode(data, type=cls)

    def apply(self, old: Manifest) -> Manifest:
        """The state that the commit leads to."""
        return old.replace(map(Entry.from_row, self.changed), decode_paths(self.removed))


class Committer:
    """Carries one plan out below ``root``; ``old`` is the state that the plan starts from."""

    def __init__(
        self, root: Path, staging: Path, store: Store, disk: Disk, old: Manifest
    ) -> None:
        self._root = root
        self._staging = staging
        self._store = store
        self._disk = disk
        self._old = old
        self._kept: list[str] = []
        self._sound: set[str] = {""}
        self._uses: Counter[bytes] = Counter()

    def carry_out(self, plan: Plan) -> list[str]:
        """Do it; the names under which files changed on the host were kept."""
        self._uses = Counter(entry.digest for entry in plan.files)
        going = {entry.path for entry in plan.removes}
        for entry in plan.removes:
            self._remove(entry, going)
        for entry in plan.folders:
            self._make_sound(entry.path)
        for entry in plan.files:
            self._put_file(entry)
        for entry in plan.links:
            self._put_link(entry)
        for entry in (*plan.modes, *reversed(plan.folders)):
            path = self._root / entry.path
            if not path.is_symlink() and _mode(path) != entry.mode:
                self._disk.chmod(path, entry.mode)
        return self._kept

    def _remove(self, entry: Entry, going: set[str]) -> None:
        path = self._root / entry.path
        if self._leads_astray(entry.path):
            return  # Somebody put a link in the way; what lies behind it is not ours.
        status = _lstat(path)
        if status is None:
            return
        if stat.S_ISDIR(status.st_mode):
            # A folder with files of the host's own stays.
            if entry.is_dir:
                with contextlib.suppress(OSError):
                    self._disk.remove_folder(path)
        elif entry.is_file and stat.S_ISREG(status.st_mode):
            self._set_aside(entry.path, path)
        elif entry.is_link and stat.S_ISLNK(status.st_mode):
            self._disk.unlink(path)

    def _put_file(self, entry: Entry) -> None:
        staged = self._staging / entry.digest.hex()
        path = self._root / entry.path
        self._make_sound(parent_of(entry.path))
        if not self._is_done(path, entry):
            self._give_way(entry.path, path)
            if self._uses[entry.digest] > 1:
                part = staged.with_name(f"{staged.name}.part")
                self._disk.copy(staged, part, entry.mode)
                staged = part
            else:
                self._disk.chmod(staged, entry.mode)
            self._disk.rename(staged, path)

    def _is_done(self, path: Path, entry: Entry) -> bool:
        status = _lstat(path)
        if status is None or not stat.S_ISREG(status.st_mode):
            return False
        done = status.st_size == entry.size and _digest(path) == entry.digest
        if done and stat.S_IMODE(status.st_mode) != entry.mode:
            self._disk.chmod(path, entry.mode)
        return done

    def _put_link(self, entry: Entry) -> None:
        path = self._root / entry.path
        self._make_sound(parent_of(entry.path))
        if path.is_symlink() and os.readlink(path) == entry.target:
            return
        self._give_way(entry.path, path)
        self._disk.make_link(path, entry.target)

    def _give_way(self, name: str, path: Path) -> None:
        """Free a place for what comes: ours goes to the store, anybody else's is kept beside."""
        status = _lstat(path)
        if status is None:
            return
        if stat.S_ISREG(status.st_mode):
            self._set_aside(name, path)
        elif stat.S_ISLNK(status.st_mode) and _is(self._old.get(name), "link"):
            self._disk.unlink(path)
        else:
            self._keep(name, path, "0" * 8)

    def _set_aside(self, name: str, path: Path) -> None:
        """Take a regular file away: into the store if it is as we left it, else kept beside."""
        digest = _digest(path)
        ours = self._old.get(name)
        if ours is not None and ours.digest == digest:
            self._store.take(path, digest)
        else:
            self._keep(name, path, short(digest))

    def _keep(self, name: str, path: Path, mark: str) -> None:
        kept = f"{name}.host-{mark}"
        self._disk.rename(path, self._root / kept)
        self._kept.append(kept)

    def _make_sound(self, folder: str) -> None:
        """See that ``folder`` and all above it are real folders inside the root."""
        if folder in self._sound:
            return
        self._make_sound(parent_of(folder))
        path = self._root / folder
        status = _lstat(path)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            self._give_way(folder, path)
            status = None
        if status is None:
            self._disk.make_folder(path)
        elif not os.access(path, os.W_OK | os.X_OK):
            self._disk.chmod(path, stat.S_IMODE(status.st_mode) | 0o700)
        self._sound.add(folder)

    def _leads_astray(self, name: str) -> bool:
        """Whether a folder above ``name`` is a link."""
        while name := parent_of(name):
            if (self._root / name).is_symlink():
                return True
        return False


def _is(entry: Entry | None, kind: str) -> bool:
    return entry is not None and entry.kind.value == kind


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def _digest(path: Path) -> bytes:
    with open(path, "rb") as file:
        return digest_stream(file)[0]
