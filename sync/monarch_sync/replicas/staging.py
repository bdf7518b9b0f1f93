"""Staging: prepare content for a commit, beside the replica's folder and on its file system.

A content comes whole, or as a delta against a content of the host, or from this host: from the old
state, or from the store, where it may stay until the commit. Its digest is always verified before
it counts. A folder that is new to the host is put together here, and the commit moves it whole.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence

from monarch_sync.content.delta import decode, decompress, unpatch
from monarch_sync.content.digest import LARGE_BYTES, digest_bytes
from monarch_sync.content.disk import Content, Disk
from monarch_sync.content.stamps import digest_of, lstat
from monarch_sync.errors import BadManifest, BadMessage
from monarch_sync.messages import Blob
from monarch_sync.replicas.in_place import InPlace
from monarch_sync.replicas.on_disk import OnDisk
from monarch_sync.replicas.patch_file import writes_of
from monarch_sync.replicas.ready import SECOND_NS, ReadyContent, Swap, time_after
from monarch_sync.replicas.state_folder import remove_part
from monarch_sync.replicas.store import ContentStore
from monarch_sync.tree.diff import SyncPlan
from monarch_sync.tree.entry import Entry, parent_of
from monarch_sync.tree.manifest import Manifest

_NOBODY: dict[str, str] = {}


class Staging:
    """The preparations for the next commit. `ready`: how each path gets its content. `swaps`: the
    simplest of these, once all are ready. `tops`: the new folders that are prepared whole, and
    where; `folders`: all folders inside those."""

    def __init__(self, folder: str, on_disk: OnDisk, store: ContentStore, disk: Disk) -> None:
        self.folder = folder
        self._root = on_disk.root
        self._on_disk = on_disk
        self._store = store
        self._disk = disk
        self._in_place = InPlace(on_disk.root, store, disk)
        self._num_places = 0
        self.num_bytes = 0  # that came for the next commit
        self._expected: dict[bytes, list[Entry]] = {}
        self._replaced: set[bytes] = set()
        self._salvaged: dict[bytes, str] = {}
        self._old = Manifest()
        self._before: dict[str, Entry] = {}
        self.ready: dict[str, ReadyContent] = {}
        self.swaps: dict[str, Swap] = {}
        self.tops: dict[str, str] = {}
        self.folders: dict[str, str] = _NOBODY
        os.makedirs(self.folder, exist_ok=True)

    def begin(self, plan: SyncPlan, old: Manifest) -> None:
        """Begin to prepare a plan that starts from the state ``old``, or the next part of a first
        state."""
        if not os.path.isdir(self.folder):  # A clean-up takes empty folders away.
            with contextlib.suppress(FileExistsError):  # Any other trouble shows when it is used.
                os.mkdir(self.folder)
        self._old = old
        for entry in plan.modes:
            before = old.get(entry.path)
            if before is not None and before.is_file:
                _check_size(entry, before.size)
        for entry in plan.files:
            self._expected.setdefault(entry.digest, []).append(entry)
        self._before = plan.before
        self._replaced = {
            entry.digest for part in (plan.before.values(), plan.removes) for entry in part
        }
        if plan.folders or self.folders:
            self._begin_folders(plan)

    def _begin_folders(self, plan: SyncPlan) -> None:
        places = dict(self.folders)
        gives_way = {entry.path for entry in plan.removes if not entry.is_dir}
        for entry in plan.folders:
            above = places.get(parent_of(entry.path))
            if above is None:
                if not self._on_disk.is_real(parent_of(entry.path)):
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
        """Take in a blob. Raises `BadMessage` if its content has the wrong digest. A delta whose
        base is missing is dropped, so that the whole content is asked for."""
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
        _check_size(entry, len(content))
        folder, _, name = path.rpartition("/")
        above = self.folders.get(folder)
        if above is not None:
            place = f"{above}/{name}"
            self._disk.put(place, content, mode)
            self.ready[path] = ReadyContent(place)
            return
        before, digest = self._on_disk.look(path)
        place, mtime = "", None
        if digest != entry.digest:
            place, mtime = self._new_place(), time_after(before)
            self._disk.put(place, content, mode, mtime)
        self.ready[path] = ReadyContent(place, before, digest, mtime_ns=(mtime or 0) * SECOND_NS)

    def _add_pieces(self, blob: Blob, content: Content) -> None:
        entries = self._expected.get(blob.digest)
        path = self._path_of_base(blob)
        if not entries or path is None:
            return
        entry = entries[0]
        pieces = decode(content, os.path.getsize(path), entry.size)
        writes = writes_of(pieces)
        if len(entries) == 1 and writes is not None:
            before, digest = self._on_disk.look(entry.path)
            if before is not None and digest == blob.base:
                ours = self._old.get(entry.path)
                ready = self._in_place.fit(entry, ours, before, blob.base, writes, self._new_place)
                if ready is not None:
                    self.ready[entry.path] = ready
                    return
        place = self._new_place()
        if self._disk.patch(place, pieces, path, entry.mode | 0o600) == blob.digest:
            self._salvaged[blob.digest] = place
        else:
            os.unlink(place)

    def _base_of(self, blob: Blob) -> bytes | None:
        path = self._path_of_base(blob)
        if path is None:
            return None
        with open(path, "rb", buffering=0) as file:
            return file.readall()

    def _path_of_base(self, blob: Blob) -> str | None:
        """Return the path of a file on this host that has the base of a delta."""
        for entry in self._expected.get(blob.digest, ()):
            path = f"{self._root}/{entry.path}"
            if self._on_disk.look(entry.path)[1] == blob.base:
                return path
        found = self._on_disk.find(blob.base, self._old.path_of(blob.base))
        return None if found is None else found[0]

    def _fetch(self, entry: Entry, source: str | None, *, is_going: bool) -> bool:
        """Get the content of an entry from this host: from its folder, the store or `source`.

        For a content that the push left out. Returns False if the host does not have it. A file
        that `is_going` from its place only gets a second name.
        """
        above = self.folders.get(parent_of(entry.path))
        if above is not None and source is None and not self._has(entry.digest):
            return False
        before, digest = (None, None) if above is not None else self._on_disk.look(entry.path)
        if digest == entry.digest and before is not None:
            _check_size(entry, before.st_size)
            self.ready[entry.path] = ReadyContent("", before, digest)
            return True
        is_shared = len(self._expected[entry.digest]) > 1
        place = self._salvaged.get(entry.digest, "")
        at = (place, None) if place else self._on_disk.find(entry.digest, source)
        if at is None and source is None and self._store.has(entry.digest):
            # The stored content has changed, but another file may have the right one.
            source = self._old.path_of(entry.digest)
            at = self._on_disk.find(entry.digest, source)
        if at is None:
            ours = self._old.get(entry.path)
            if before is None or is_shared:
                return False
            ready = self._in_place.fetch(entry, ours, before, digest, self._new_place)
            if ready is not None:
                self.ready[entry.path] = ready
            return ready is not None
        found, status = at
        is_ours = found == f"{self._root}/{source}"
        is_free = not is_shared and above is None
        if is_free and place:
            del self._salvaged[entry.digest]
            mtime_ns = self._fit(place, entry, before)
            self.ready[entry.path] = ReadyContent(place, before, digest, mtime_ns=mtime_ns)
        elif is_free and not is_ours and entry.digest not in self._replaced:
            mtime_ns = self._fit(found, entry, before, status)
            self.ready[entry.path] = ReadyContent(found, before, digest, True, mtime_ns=mtime_ns)
        else:
            name = entry.path.rpartition("/")[2]
            place = self._new_place() if above is None else f"{above}/{name}"
            is_linked = False
            if is_going and is_ours and not is_shared and status is not None:
                is_linked = True
                self._disk.link(found, place)
                mtime_ns = status.st_mtime_ns
            else:
                self._disk.copy(found, place, entry.mode | 0o600)
                mtime_ns = self._fit(place, entry, before)
            self.ready[entry.path] = ReadyContent(
                place, before, digest, is_linked=is_linked, mtime_ns=mtime_ns
            )
        return True

    def gather(self, plan: SyncPlan, new: Manifest) -> list[bytes]:
        """Get every content of a plan ready; return the digests of contents that are missing."""
        missing: dict[bytes, None] = {}
        moved = plan.moved
        ready = self.ready
        # Not those in a folder that moves: they stay, by another name.
        going = {entry.path for entry in plan.removes if entry.path not in new}
        for entry in plan.files:
            if entry.path in ready:
                continue
            source = moved.get(entry.path)
            if not self._fetch(entry, source, is_going=source in going):
                missing[entry.digest] = None
        for entry in plan.removes:
            if entry.is_file:
                # Looked at now, so that the commit is short.
                self._on_disk.look(entry.path)
        return list(missing)

    def _has(self, digest: bytes) -> bool:
        return digest in self._salvaged or self._store.has(digest)

    def _fit(
        self, place: str, entry: Entry, before: os.stat_result | None,
        status: os.stat_result | None = None,
    ) -> int:  # fmt: skip
        """Give a staged file the mode and the time that it will have when visible; return that
        time, in nanoseconds. ``status``: its status, if the caller has just read it."""
        if status is None:
            status = os.lstat(place)
        if status.st_mode & 0o7777 != entry.mode | 0o600:
            self._disk.chmod(place, entry.mode | 0o600)
        if before is not None and status.st_mtime <= before.st_mtime + 1:
            seconds = time_after(before)
            if seconds is not None:
                self._disk.set_time(place, seconds)
                return seconds * SECOND_NS
        return status.st_mtime_ns

    def line_up(self, files: Iterable[Entry]) -> None:
        """List the swaps among ``files`` once all content is ready, so that the commit is short."""
        for entry in files:
            path = entry.path
            place, before, digest, is_stored, is_linked, patch, mtime_ns = self.ready[path]
            if before is None or digest is None or not place or is_linked or patch is not None:
                continue
            ours = self._before.get(path)
            if ours is not None and ours.digest == digest and entry.mode & 0o600 == 0o600:
                full = f"{self._root}/{path}"
                self.swaps[path] = Swap(
                    folder=parent_of(path),
                    path=full,
                    place=place,
                    before=before,
                    old=digest,
                    new=entry.digest,
                    is_stored=is_stored,
                    mtime_ns=mtime_ns,
                )

    def salvage(self, plan: SyncPlan, old: Manifest) -> None:
        """After an interrupted commit: find the staged content that is still here, by its digest.

        Some staged files may have changed places already with the files that they replace.
        """
        self.forget()
        self.begin(SyncPlan(files=plan.files, removes=plan.removes, before=plan.before), old)
        self._disk.finish_exchanges(self.folder)
        for path in self._files():
            if self._in_place.salvage(path):
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
        """After an interrupted commit: move the replaced contents to the store."""
        for digest, path in self._salvaged.items():
            if digest in self._replaced and (status := lstat(path)) is not None:
                self._store.take(path, digest, status)
        self._in_place.return_old()

    def _files(self) -> Iterable[str]:
        for folder, _, names in os.walk(self.folder):
            yield from (f"{folder}/{name}" for name in names)

    def forget(self) -> None:
        """Forget the preparations. The files in the staging folder stay."""
        self._expected, self._salvaged, self._replaced = {}, {}, set()
        self._in_place.forget()
        self._on_disk.forget()
        self.num_bytes = 0
        self.ready, self.swaps, self.tops, self.folders = {}, {}, {}, _NOBODY

    def drop(self) -> None:
        """Forget the preparations, and delete all files in the staging folder."""
        self.forget()
        with os.scandir(self.folder) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    remove_part(entry.path, self.folder)
                else:
                    os.unlink(entry.path)
        self._num_places = 0  # a file that could not be deleted keeps its name

    def _new_place(self) -> str:
        self._num_places += 1
        return f"{self.folder}/{self._num_places}"


def _stem(name: str) -> str:
    return name.partition(".")[0]


def _check_size(entry: Entry, size: int) -> None:
    """Raise ``BadManifest`` if an entry's size is not the size of its content."""
    if entry.size != size:
        raise BadManifest(entry.path, f"has {size} bytes, and not the {entry.size} that are said")


MAX_PACK_BYTES = 64 << 20  # so much memory a message may make us take, at most


def contents_of(
    blob: Blob, data: Content, base: bytes | None, expected: Mapping[bytes, Sequence[Entry]]
) -> Iterator[tuple[bytes, Content]]:
    """Yield each content in a blob as (digest, content). ``base``: the content that a patch
    changes. Raises ``BadMessage`` if a content does not have its digest."""
    if blob.encoding in ("raw", "patch"):
        if blob.digest not in expected:
            return
        if blob.encoding == "patch":
            size = expected[blob.digest][0].size
            if size >= LARGE_BYTES:
                raise BadMessage("a large file came as a patch")
            data = unpatch(data, base or b"", size)
        yield _verified(blob.digest, data)
        return
    total = sum(size for _, size in blob.parts)
    if total > MAX_PACK_BYTES or any(size < 0 for _, size in blob.parts):
        raise BadMessage(f"a pack makes {total} bytes, more than {MAX_PACK_BYTES}")
    if blob.encoding == "frame":
        data = decompress(data, total)
    view = memoryview(data)
    if len(view) != total:
        raise BadMessage(f"a pack has {len(view)} bytes of {total}")
    at = 0
    for digest, size in blob.parts:
        if digest in expected:
            yield _verified(digest, view[at : at + size])
        at += size


def _verified(digest: bytes, content: Content) -> tuple[bytes, Content]:
    if digest_bytes(content) != digest:
        raise BadMessage("a content does not have the digest that it should")
    return digest, content
