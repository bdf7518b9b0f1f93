"""Staging: what is ready to be shown, beside the replica's folder and on its file system.

A content gets here as it came, from a delta against what the host has, or from this host: the old
state, or the store, where it may stay until it is shown. Whatever the way, its digest is verified
before it counts. A folder that is new to the host is put together here whole, to be shown at once.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from monarch_sync.delta import decode
from monarch_sync.diff import Plan
from monarch_sync.digest import LARGE_BYTES
from monarch_sync.disk import Content, Disk
from monarch_sync.entry import Entry, parent_of
from monarch_sync.manifest import Manifest
from monarch_sync.messages import Blob
from monarch_sync.patch_file import Blocks, Patch, writes_of
from monarch_sync.stamps import Stamps, digest_of, lstat
from monarch_sync.store import Store
from monarch_sync.unpacking import contents_of

__all__ = ["Ready", "Staging", "Swap", "time_after"]

_NOBODY: dict[str, str] = {}
_PATCH = ".patch"
_SPARE_BYTES = 1 << 20


class Ready(NamedTuple):
    """How a file gets its content: ``place`` is where that lies, "" if it is there already.

    ``before`` and ``digest``: what stood at the file's path when we looked. ``is_stored``: the
    place is in the store. ``is_linked``: it is another name of a file that is visible. ``patch``:
    the file is to be changed where it stands; at the place is a note of how.
    """

    place: str
    before: os.stat_result | None = None
    digest: bytes | None = None
    is_stored: bool = False
    is_linked: bool = False
    patch: Patch | None = None


class Swap(NamedTuple):
    """A file of ours that changes places with the next: all that a commit has to know of it.

    ``before``: what stands at the path, with the content ``old``; ``new`` lies at ``place``.
    """

    folder: str
    path: str
    place: str
    before: os.stat_result
    old: bytes
    new: bytes
    is_stored: bool


class Staging:
    """What the next commit needs. `ready`: by path; `swaps`: what is plainest of it, once all is.
    `tops`: new folders that are whole here, and where; `folders`: all folders in those."""

    def __init__(self, root: Path, folder: Path, store: Store, disk: Disk, stamps: Stamps) -> None:
        self._root = os.fspath(root)
        self.folder = os.fspath(folder)
        self._store = store
        self._disk = disk
        self._stamps = stamps
        self._num_places = 0
        self.num_bytes = 0  # that came for the next commit
        self._expected: dict[bytes, list[Entry]] = {}
        self._replaced: set[bytes] = set()
        self._salvaged: dict[bytes, str] = {}
        self._real = {"": True}
        self._patches: dict[bytes, tuple[str, Patch]] = {}
        self._blocks = Blocks()
        self._old = Manifest()
        self.ready: dict[str, Ready] = {}
        self.swaps: dict[str, Swap] = {}
        self.tops: dict[str, str] = {}
        self.folders: dict[str, str] = _NOBODY
        os.makedirs(self.folder, exist_ok=True)

    def begin(self, plan: Plan, old: Manifest) -> None:
        """What is to be got ready, from what is shown now."""
        self._old = old
        for entry in plan.files:
            self._expected.setdefault(entry.digest, []).append(entry)
        if len(old):
            before = (old.get(entry.path) for entry in plan.files)
            self._replaced.update(entry.digest for entry in before if entry is not None)
        self._replaced.update(entry.digest for entry in plan.removes)
        self._begin_folders(plan)

    def _begin_folders(self, plan: Plan) -> None:
        places: dict[str, str] = {}
        gives_way = {entry.path for entry in plan.removes if not entry.is_dir}
        for entry in plan.folders:
            above = places.get(parent_of(entry.path))
            if above is None:
                if not self._is_real(parent_of(entry.path)):
                    continue
                is_new = self._old.get(entry.path) is None
                there = None if entry.path in gives_way else lstat(f"{self._root}/{entry.path}")
                if there is not None or not (is_new or entry.path in gives_way):
                    continue
                place = self.tops[entry.path] = self._new_place()
            else:
                place = f"{above}/{entry.path.rpartition('/')[2]}"
            places[entry.path] = place
            self._disk.make_folder(place, entry.mode | 0o700)
            if stat.S_IMODE(os.stat(place).st_mode) != entry.mode | 0o700:
                self._disk.chmod(place, entry.mode | 0o700)
        if not places:
            return
        self.folders = places
        for entry in plan.links:
            above = places.get(parent_of(entry.path))
            if above is not None:
                self._disk.make_link(f"{above}/{entry.path.rpartition('/')[2]}", entry.target)

    def add(self, blob: Blob, content: Content) -> None:
        """Take in what came. Raises `BadMessage` if it is not what it should be. Of a delta whose
        base is not to be had nothing is kept, so that the whole is asked for."""
        self.num_bytes += blob.size
        if blob.encoding == "delta":
            self._add_pieces(blob, content)
            return
        base = None
        if blob.encoding == "patch":
            base = self._base_of(blob)
            if base is None:
                return
        for digest, part in contents_of(blob, content, base, self._expected):
            for entry in self._expected[digest]:
                self._write(entry, part)

    def _write(self, entry: Entry, content: Content) -> None:
        path, mode = entry.path, entry.mode | 0o600
        if path in self.ready:
            return
        folder, _, name = path.rpartition("/")
        above = self.folders.get(folder)
        if above is not None:
            place = f"{above}/{name}"
            self._disk.put(place, content, mode)
            self.ready[path] = Ready(place)
            return
        before, digest = self.look(entry.path)
        place = ""
        if digest != entry.digest:
            place = self._new_place()
            self._disk.put(place, content, mode, time_after(before))
        self.ready[entry.path] = Ready(place, before, digest)

    def _add_pieces(self, blob: Blob, content: Content) -> None:
        entries = self._expected.get(blob.digest)
        path = self._path_of_base(blob)
        if not entries or path is None:
            return
        entry = entries[0]
        pieces = decode(content, os.path.getsize(path), entry.size)
        writes = writes_of(pieces)
        if len(entries) == 1 and writes is not None:
            before, digest = self.look(entry.path)
            if before is not None and digest == blob.base:
                step = Patch(blob.base, before.st_size, entry.digest, entry.size, writes, [])
                if self._fits(entry, before, step):
                    return
        place = self._new_place()
        if self._disk.patch(place, pieces, path, entry.mode | 0o600) == blob.digest:
            self._salvaged[blob.digest] = place
        else:
            os.unlink(place)

    def _fits(self, entry: Entry, before: os.stat_result, patch: Patch) -> bool:
        """Whether a patch may be, and is, got ready for the file that stands there: it is ours,
        has no other name, and becomes what it should."""
        ours = self._old.get(entry.path)
        if ours is None or ours.digest != patch.base or before.st_nlink > 1:
            return False
        path = f"{self._root}/{entry.path}"
        if not _has_room(path, patch):
            return False
        if self._blocks.patched(path, patch.base, patch.size, patch.writes) != entry.digest:
            return False
        undo = self._blocks.undo(path, patch.size, patch.writes)
        if undo is None:
            return False
        whole = Patch(
            patch.base, before.st_size, entry.digest, entry.size, patch.writes, undo
        )  # fmt: skip
        place = f"{self._new_place()}{_PATCH}"
        self._disk.put(place, whole.encode(), 0o600)
        self.ready[entry.path] = Ready(place, before, patch.base, patch=whole)
        return True

    def _base_of(self, blob: Blob) -> bytes | None:
        path = self._path_of_base(blob)
        if path is None:
            return None
        with open(path, "rb", buffering=0) as file:
            return file.readall()

    def _path_of_base(self, blob: Blob) -> str | None:
        """A file of this host that has the content which a delta is taken against."""
        for entry in self._expected.get(blob.digest, ()):
            path = f"{self._root}/{entry.path}"
            if self.look(entry.path)[1] == blob.base:
                return path
        return self.find(blob.base, self._old.path_of(blob.base))

    def fetch(self, entry: Entry, source: str | None, *, is_going: bool) -> bool:
        """See that a content is to be had: it came, or it is on this host, in the store or at
        `source`. A file that `is_going` from its place only gets a second name."""
        if entry.path in self.ready:
            return True
        above = self.folders.get(parent_of(entry.path))
        if above is not None and source is None and not self._has(entry.digest):
            return False
        before, digest = (None, None) if above is not None else self.look(entry.path)
        if digest == entry.digest:
            self.ready[entry.path] = Ready("", before, digest)
            return True
        is_shared = len(self._expected[entry.digest]) > 1
        place = self._salvaged.get(entry.digest, "")
        at = (place, None) if place else self._find(entry.digest, source)
        if at is None and source is None and self._store.has(entry.digest):
            # Not what it should be any more, but it may stand elsewhere.
            source = self._old.path_of(entry.digest)
            at = self._find(entry.digest, source)
        if at is None:
            return before is not None and self._fetch_patch(entry, before, digest)
        found, status = at
        is_ours = found == f"{self._root}/{source}"
        is_free = not is_shared and above is None
        if is_free and place:
            del self._salvaged[entry.digest]
            self.ready[entry.path] = Ready(self._fit(place, entry, before), before, digest)
        elif is_free and not is_ours and entry.digest not in self._replaced:
            place = self._fit(found, entry, before, status)
            self.ready[entry.path] = Ready(place, before, digest, True)
        else:
            name = entry.path.rpartition("/")[2]
            place = self._new_place() if above is None else f"{above}/{name}"
            is_linked = is_going and is_ours and not is_shared
            if is_linked:
                self._disk.link(found, place)
            else:
                self._disk.copy(found, place, entry.mode | 0o600)
                self._fit(place, entry, before)
            self.ready[entry.path] = Ready(place, before, digest, is_linked=is_linked)
        return True

    def _has(self, digest: bytes) -> bool:
        return digest in self._salvaged or self._store.has(digest)

    def _fetch_patch(self, entry: Entry, before: os.stat_result, digest: bytes | None) -> bool:
        """Find a way to a content from what stands at its path; after a commit that was cut short,
        that may be anything between the old and the new."""
        if entry.size < LARGE_BYTES or digest is None or len(self._expected[entry.digest]) > 1:
            return False
        noted = self._patches.get(entry.digest)
        if noted is not None:
            place, patch = noted
            path = f"{self._root}/{entry.path}"
            made = self._blocks.patched(path, digest, patch.size, patch.writes)
            if made == entry.digest:
                self.ready[entry.path] = Ready(place, before, digest, patch=patch)
            return made == entry.digest
        patch_back = self._store.find_patch(entry.digest, digest)
        return patch_back is not None and self._fits(entry, before, patch_back)

    def _fit(
        self, place: str, entry: Entry, before: os.stat_result | None,
        status: os.stat_result | None = None,
    ) -> str:  # fmt: skip
        """Have a file that nobody sees yet look as it will: its mode, its time. ``status``: its
        own, if it was looked at just now."""
        if status is None:
            status = os.lstat(place)
        if status.st_mode & 0o7777 != entry.mode | 0o600:
            self._disk.chmod(place, entry.mode | 0o600)
        if before is not None and status.st_mtime <= before.st_mtime + 1:
            seconds = time_after(before)
            if seconds is not None:
                self._disk.set_time(place, seconds)
        return place

    def line_up(self, files: Iterable[Entry]) -> None:
        """All is ready: work out ahead what the commit can do without a thought."""
        for entry in files:
            path = entry.path
            place, before, digest, is_stored, is_linked, patch = self.ready[path]
            if before is None or digest is None or not place or is_linked or patch is not None:
                continue
            ours = self._old.get(path)
            if ours is not None and ours.digest == digest and entry.mode & 0o600 == 0o600:
                full = f"{self._root}/{path}"
                self.swaps[path] = Swap(
                    parent_of(path), full, place, before, digest, entry.digest, is_stored
                )  # fmt: skip

    def _is_real(self, folder: str) -> bool:
        """Whether it and all above it are folders, and no links."""
        is_real = self._real.get(folder)
        if is_real is None:
            status = lstat(f"{self._root}/{folder}")
            is_folder = status is not None and stat.S_ISDIR(status.st_mode)
            is_real = self._real[folder] = is_folder and self._is_real(parent_of(folder))
        return is_real

    def look(self, path: str) -> tuple[os.stat_result | None, bytes | None]:
        """What stands at a path that is reached by no link, and what it holds."""
        if not self._is_real(parent_of(path)):
            return None, None
        full = f"{self._root}/{path}"
        before = lstat(full)
        return before, None if before is None else self._stamps.digest_of(full, before)

    def find(self, digest: bytes, path: str | None) -> str | None:
        """A file of this host with that content, now."""
        at = self._find(digest, path)
        return None if at is None else at[0]

    def _find(self, digest: bytes, path: str | None) -> tuple[str, os.stat_result] | None:
        """The same, with its status."""
        if path is not None and self._is_real(parent_of(path)):
            ours = f"{self._root}/{path}"
            status = lstat(ours)
            if status is not None and self._stamps.digest_of(ours, status) == digest:
                return ours, status
        return self._store.find(digest)

    def salvage(self, plan: Plan, old: Manifest) -> None:
        """After a commit that was cut short: what is here is known by what it holds, whatever it
        was to be; some of it may have changed places already with what it replaces."""
        self.forget()
        self.begin(Plan(files=plan.files, removes=plan.removes), old)
        for path in self._files():
            patch = Patch.read(path) if path.endswith(_PATCH) else None
            if patch is not None:
                self._patches[patch.digest] = path, patch
                continue
            digest = digest_of(path)
            if digest is not None:
                self._salvaged[digest] = path
        self._num_places = 1 + max(
            (int(stem) for stem in map(_stem, os.listdir(self.folder)) if stem.isdecimal()),
            default=0,
        )
        self._store.mend(self._expected)

    def return_old(self) -> None:
        """After that: what was replaced goes to the store, as it would have."""
        for digest, path in self._salvaged.items():
            if digest in self._replaced and (status := lstat(path)) is not None:
                self._store.take(path, digest, status.st_size)
        for path, patch in self._patches.values():
            if lstat(path) is not None:
                self._store.take_patch(path, patch)

    def _files(self) -> Iterable[str]:
        for folder, _, names in os.walk(self.folder):
            yield from (f"{folder}/{name}" for name in names)

    def forget(self) -> None:
        """Begin anew; what lies here stays for now."""
        self._expected, self._salvaged, self._replaced = {}, {}, set()
        self._patches, self._real = {}, {"": True}
        self.num_bytes = 0
        self.ready, self.swaps, self.tops, self.folders = {}, {}, {}, _NOBODY

    def drop(self) -> None:
        """Throw all of it away."""
        self.forget()
        self._num_places = 0
        with os.scandir(self.folder) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)

    def _new_place(self) -> str:
        self._num_places += 1
        return f"{self.folder}/{self._num_places}"


def _has_room(path: str, patch: Patch) -> bool:
    """Whether the file system has room for all that a patch may write, so that a commit does not
    find out in the middle that it has not."""
    status = os.statvfs(path)
    needed = 3 * sum(len(data) for _, data in patch.writes)
    return status.f_bavail * status.f_frsize > needed + _SPARE_BYTES


def _stem(name: str) -> str:
    return name.partition(".")[0]


def time_after(before: os.stat_result | None) -> int | None:
    """The time for what replaces a file; not the present one, so that a change by anybody else
    shows. Python takes bytecode for fresh if source size and mtime in whole seconds agree, so
    it must not be the second of the file before, either."""
    if before is None or not stat.S_ISREG(before.st_mode):
        return None
    return max(int(before.st_mtime) + 1, int(time.time()) - 1)
