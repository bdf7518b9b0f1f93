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
from pathlib import Path

import msgspec

from monarch_sync.diff import Plan
from monarch_sync.digest import digest_stream, short
from monarch_sync.disk import Disk
from monarch_sync.entry import Entry, Row, parent_of
from monarch_sync.manifest import Manifest, decode_paths, encode_paths
from monarch_sync.store import Store

__all__ = ["Committer", "Journal"]

_Rename = Callable[[Path, Path], None]


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
    def decode(cls, data: bytes) -> Journal | None:
        """The journal in ``data``; ``None`` if it was torn, so that nothing was done after it."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except msgspec.MsgspecError:
            return None

    def apply(self, old: Manifest) -> Manifest:
        """The state that the commit leads to."""
        return old.replace(map(Entry.from_row, self.changed), decode_paths(self.removed))


class Committer:
    """Carries one plan out below ``root``; ``old`` is the state that the plan starts from."""

    def __init__(self, root: Path, staging: Path, store: Store, disk: Disk, old: Manifest) -> None:
        self._root = root
        self._staging = staging
        self._store = store
        self._disk = disk
        self._old = old
        self._kept: list[str] = []
        self._sound: set[str] = {""}
        self._uses: Counter[bytes] = Counter()
        self.lost: list[str] = []  # paths whose staged content is gone, so not as planned

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
            self._set_mode(entry)
        return self._kept

    def _set_mode(self, entry: Entry) -> None:
        path = self._root / entry.path
        if self._leads_astray(entry.path):
            return
        status = _lstat(path)
        if status is None or stat.S_ISDIR(status.st_mode) != entry.is_dir:
            return  # Taken away, or replaced, on the host: theirs now.
        if not stat.S_ISLNK(status.st_mode) and stat.S_IMODE(status.st_mode) != entry.mode:
            self._disk.chmod(path, entry.mode)

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
                self._remove_folder(path)
        elif entry.is_file and stat.S_ISREG(status.st_mode):
            self._drop_bytecode(path)
            self._set_aside(entry.path, path)
        elif entry.is_link and stat.S_ISLNK(status.st_mode):
            self._disk.unlink(path)

    def _remove_folder(self, path: Path) -> None:
        """Take a folder away, unless it has files of the host's own."""
        with contextlib.suppress(OSError):
            self._disk.remove_folder(path / "__pycache__")  # empty once our bytecode is gone
        with contextlib.suppress(FileNotFoundError):
            if not any(path.iterdir()):
                self._disk.remove_folder(path)

    def _drop_bytecode(self, path: Path) -> None:
        """Python's compiled form of a file of ours goes with it."""
        if path.suffix == ".py":
            for compiled in (path.parent / "__pycache__").glob(f"{glob.escape(path.stem)}.*.pyc"):
                self._disk.unlink(compiled)

    def _put_file(self, entry: Entry) -> None:
        staged = self._staging / entry.digest.hex()
        path = self._root / entry.path
        self._make_sound(parent_of(entry.path))
        if self._is_done(path, entry):
            return
        if not staged.exists():
            self.lost.append(entry.path)
            return
        if self._uses[entry.digest] > 1:
            part = staged.with_name(f"{staged.name}.part")
            self._disk.copy(staged, part, entry.mode)
            staged = part
        else:
            self._disk.chmod(staged, entry.mode)
        self._make_younger(staged, path)
        self._give_way(entry.path, path)
        self._disk.rename(staged, path)

    def _make_younger(self, staged: Path, path: Path) -> None:
        """Python takes bytecode for fresh if source size and mtime in whole seconds agree, so
        what replaces a source file must not bear the same second."""
        before = _lstat(path)
        if path.suffix != ".py" or before is None:
            return
        if int(os.stat(staged).st_mtime) <= int(before.st_mtime):
            self._disk.set_time(staged, int(before.st_mtime) + 1)

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
        beside = self._staging / "link.part"
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()
        self._disk.make_link(beside, entry.target)
        self._disk.rename(beside, path)

    def _give_way(self, name: str, path: Path) -> None:
        """See that what stands here may be renamed over: ours is in the store, a file of anybody
        else's has a second name. It stays visible until it is replaced."""
        status = _lstat(path)
        if status is None:
            return
        if stat.S_ISREG(status.st_mode):
            self._set_aside(name, path, self._disk.link)
        elif not (stat.S_ISLNK(status.st_mode) and _is(self._old.get(name), "link")):
            self._keep(name, path, "0" * 8, self._disk.rename)

    def _set_aside(self, name: str, path: Path, how: _Rename | None = None) -> None:
        """Save a regular file: in the store if it is as we left it, else kept beside. Without
        ``how`` it is moved there, so that its own place is free."""
        digest = _digest(path)
        ours = self._old.get(name)
        if ours is None or ours.digest != digest:
            self._keep(name, path, short(digest), how or self._disk.rename)
        elif how is None:
            self._store.take(path, digest)
        else:
            self._store.share(path, digest)

    def _keep(self, name: str, path: Path, mark: str, how: _Rename) -> None:
        kept = f"{name}.host-{mark}"
        how(path, self._root / kept)
        self._kept.append(kept)

    def _make_sound(self, folder: str) -> None:
        """See that ``folder`` and all above it are real folders inside the root."""
        if folder in self._sound:
            return
        self._make_sound(parent_of(folder))
        path = self._root / folder
        status = _lstat(path)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            self._clear(folder, path, status)
            status = None
        if status is None:
            self._disk.make_folder(path)
        elif not os.access(path, os.W_OK | os.X_OK):
            self._disk.chmod(path, stat.S_IMODE(status.st_mode) | 0o700)
        self._sound.add(folder)

    def _clear(self, name: str, path: Path, status: os.stat_result) -> None:
        """Make room for a folder."""
        if stat.S_ISREG(status.st_mode):
            self._set_aside(name, path)
        elif stat.S_ISLNK(status.st_mode) and _is(self._old.get(name), "link"):
            self._disk.unlink(path)
        else:
            self._keep(name, path, "0" * 8, self._disk.rename)

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


def _digest(path: Path) -> bytes:
    with open(path, "rb") as file:
        return digest_stream(file)[0]
