"""Staging: prepare content for a commit, beside the replica's folder and on its file system.

A content is sent whole, or as a delta against a content of the host, or it is copied on the host:
from the old state, or from the store. A content from the store may stay there until the commit. The
digest of each content is verified before it is used. A folder that is new to the host is filled
here, and the commit moves it whole.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence

from monarch_sync.content.delta import decode, decompress, unpatch
from monarch_sync.content.digest import LARGE_BYTES, digest_bytes
from monarch_sync.content.disk import Content
from monarch_sync.content.stamps import digest_of, lstat
from monarch_sync.errors import BadManifest, BadMessage
from monarch_sync.messages import Blob
from monarch_sync.replicas.in_place import InPlace
from monarch_sync.replicas.on_disk import OnDisk
from monarch_sync.replicas.patch_file import writes_of
from monarch_sync.replicas.ready import SECOND_NS, ReadyContent, Swap, time_after
from monarch_sync.replicas.state_folder import remove_part
from monarch_sync.tree.diff import SyncPlan
from monarch_sync.tree.entry import Entry, parent_of
from monarch_sync.tree.manifest import Manifest


class Staging:
    """The prepared content for the next commit, in a ``folder`` beside the replica's folder."""

    def __init__(self, folder: str, on_disk: OnDisk) -> None:
        self.folder = folder
        self._root = on_disk.root
        self._on_disk = on_disk
        self._store = on_disk.store
        self._disk = on_disk.disk
        self._in_place = InPlace(on_disk, self._new_place)
        #: The number of the last name that was given to a staged file.
        self._num_places = 0
        #: Bytes that were sent for the next commit. Any thread may read it.
        self.num_bytes = 0
        #: The files of the plan, by content.
        self._expected: dict[bytes, list[Entry]] = {}
        #: Contents of the old state that the commit replaces or deletes.
        self._replaced_digests: set[bytes] = set()
        #: Staged contents that no file uses yet, with their paths.
        self._salvaged: dict[bytes, str] = {}
        self._old = Manifest()
        #: The old entries of files that the commit replaces, by path.
        self._replaced_entries: dict[str, Entry] = {}
        #: How each path gets its content.
        self.ready: dict[str, ReadyContent] = {}
        #: The simplest of these, once all content is ready.
        self.swaps: dict[str, Swap] = {}
        #: New folders that the commit moves whole, with the paths where they are prepared.
        self.tops: dict[str, str] = {}
        #: These folders and all folders inside them, likewise.
        self.folders: dict[str, str] = {}
        os.makedirs(self.folder, exist_ok=True)

    def begin(self, plan: SyncPlan, old: Manifest) -> None:
        """Begin to prepare a plan that starts from the state ``old``. For a first state that comes
        in instalments, call it for the plan of each part.
        """
        if not os.path.isdir(self.folder):  # A clean-up program may have deleted it.
            with contextlib.suppress(FileExistsError):  # Other errors show when it is used.
                os.mkdir(self.folder)
        self._old = old
        for entry in plan.modes:
            old_entry = old.get(entry.path)
            if old_entry is not None and old_entry.is_file:
                _check_size(entry, old_entry.size)
        for entry in plan.files:
            self._expected.setdefault(entry.digest, []).append(entry)
        self._replaced_entries = plan.replaced
        self._replaced_digests = {
            entry.digest for part in (plan.replaced.values(), plan.removes) for entry in part
        }
        if plan.folders or self.folders:
            self._begin_folders(plan)

    def _begin_folders(self, plan: SyncPlan) -> None:
        folders = dict(self.folders)
        gives_way = {entry.path for entry in plan.removes if not entry.is_dir}
        for entry in plan.folders:
            above = folders.get(parent_of(entry.path))
            if above is None:
                if not self._on_disk.is_real(parent_of(entry.path)):
                    continue
                is_new = self._old.get(entry.path) is None
                status = None if entry.path in gives_way else lstat(f"{self._root}/{entry.path}")
                if status is not None or not (is_new or entry.path in gives_way):
                    continue
                staged = self.tops[entry.path] = self._new_place()
            else:
                staged = f"{above}/{entry.path.rpartition('/')[2]}"
            folders[entry.path] = staged
            self._disk.make_folder(staged, entry.mode | 0o700)
            if stat.S_IMODE(os.stat(staged).st_mode) != entry.mode | 0o700:
                self._disk.chmod(staged, entry.mode | 0o700)
        if not folders:
            return
        self.folders = folders
        for entry in plan.links:
            above = folders.get(parent_of(entry.path))
            if above is not None:
                self._disk.make_link(f"{above}/{entry.path.rpartition('/')[2]}", entry.target)

    def add(self, blob: Blob, content: Content) -> None:
        """Take in a blob. Raises `BadMessage` if its content has the wrong digest.

        A delta or patch is dropped if this host lacks its base; the host then asks the author for
        the whole content.
        """
        self.num_bytes += blob.size
        if blob.encoding == "delta":
            self._add_pieces(blob, content)
            return
        base = None
        if blob.encoding == "patch":
            path = self._path_of_base(blob)
            if path is None:
                return
            with open(path, "rb", buffering=0) as file:
                base = file.readall()
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
            staged = f"{above}/{name}"
            self._disk.put(staged, content, mode)
            self.ready[path] = ReadyContent(staged)
            return
        status, digest = self._on_disk.look(path)
        staged, mtime = "", None
        if digest != entry.digest:
            staged, mtime = self._new_place(), time_after(status)
            self._disk.put(staged, content, mode, mtime)
        self.ready[path] = ReadyContent(staged, status, digest, mtime_ns=(mtime or 0) * SECOND_NS)

    def _add_pieces(self, blob: Blob, content: Content) -> None:
        entries = self._expected.get(blob.digest)
        path = self._path_of_base(blob)
        if not entries or path is None:
            return
        entry = entries[0]
        pieces = decode(content, os.path.getsize(path), entry.size)
        writes = writes_of(pieces)
        if len(entries) == 1 and writes is not None:
            status, digest = self._on_disk.look(entry.path)
            if status is not None and digest == blob.base:
                old_entry = self._old.get(entry.path)
                ready = self._in_place.fit(entry, old_entry, status, blob.base, writes)
                if ready is not None:
                    self.ready[entry.path] = ready
                    return
        staged = self._new_place()
        if self._disk.patch(staged, pieces, path, entry.mode | 0o600) == blob.digest:
            self._salvaged[blob.digest] = staged
        else:
            os.unlink(staged)

    def _path_of_base(self, blob: Blob) -> str | None:
        """Return the path of a file on this host that has the content ``blob.base``; None if there
        is none."""
        for entry in self._expected.get(blob.digest, ()):
            path = f"{self._root}/{entry.path}"
            if self._on_disk.look(entry.path)[1] == blob.base:
                return path
        copy = self._on_disk.find(blob.base, self._old.path_of(blob.base))
        return None if copy is None else copy[0]

    def _fetch(self, entry: Entry, source: str | None, *, is_removed: bool) -> ReadyContent | None:
        """Return the content of an entry that the push left out, from this host: from the file
        itself, the file ``source`` of the old state, or the store. None if the host lacks it.

        ``is_removed``: the commit deletes ``source``, so the new file may be a hard link to it.
        """
        above = self.folders.get(parent_of(entry.path))
        is_stored = entry.digest in self._salvaged or self._store.has(entry.digest)
        if above is not None and source is None and not is_stored:
            return None
        status, digest = (None, None) if above is not None else self._on_disk.look(entry.path)
        if digest == entry.digest and status is not None:
            _check_size(entry, status.st_size)
            return ReadyContent("", status, digest)
        is_shared = len(self._expected[entry.digest]) > 1
        staged = self._salvaged.get(entry.digest, "")
        copy = (staged, None) if staged else self._on_disk.find(entry.digest, source)
        if copy is None and source is None and self._store.has(entry.digest):
            # The stored content has changed, but another file may have the right one.
            source = self._old.path_of(entry.digest)
            copy = self._on_disk.find(entry.digest, source)
        if copy is None:
            if status is None or is_shared:
                return None
            return self._in_place.fetch(entry, self._old.get(entry.path), status, digest)
        path, path_status = copy
        is_visible = path == f"{self._root}/{source}"
        if not is_shared and above is None:
            if staged:
                del self._salvaged[entry.digest]
                mtime_ns = self._fit(staged, entry, status)
                return ReadyContent(staged, status, digest, mtime_ns=mtime_ns)
            if not is_visible and entry.digest not in self._replaced_digests:
                mtime_ns = self._fit(path, entry, status, path_status)
                return ReadyContent(path, status, digest, is_stored=True, mtime_ns=mtime_ns)
        staged = f"{above}/{entry.path.rpartition('/')[2]}" if above else self._new_place()
        is_linked = is_removed and is_visible and not is_shared
        if is_linked and path_status is not None:
            self._disk.link(path, staged)
            mtime_ns = path_status.st_mtime_ns
        else:
            self._disk.copy(path, staged, entry.mode | 0o600)
            mtime_ns = self._fit(staged, entry, status)
        return ReadyContent(staged, status, digest, is_linked=is_linked, mtime_ns=mtime_ns)

    def gather(self, plan: SyncPlan, new: Manifest) -> list[bytes]:
        """Get every content of a plan ready; return the digests of contents that are missing."""
        missing: dict[bytes, None] = {}
        # A file in a folder that moves is not removed: it only gets another path.
        removed = {entry.path for entry in plan.removes if entry.path not in new}
        for entry in plan.files:
            if entry.path in self.ready:
                continue
            source = plan.moved.get(entry.path)
            ready = self._fetch(entry, source, is_removed=source in removed)
            if ready is None:
                missing[entry.digest] = None
            else:
                self.ready[entry.path] = ready
        for entry in plan.removes:
            if entry.is_file:
                self._on_disk.look(entry.path)  # so that the commit need not read it
        return list(missing)

    def _fit(
        self,
        path: str,
        entry: Entry,
        old_status: os.stat_result | None,
        status: os.stat_result | None = None,
    ) -> int:
        """Give a staged file the mode and the mtime that it will have when it is visible; return
        the mtime in nanoseconds.

        ``old_status`` is the status of the file that the staged file replaces. ``status`` is the
        status of the staged file; None: it is read.
        """
        if status is None:
            status = os.lstat(path)
        if status.st_mode & 0o7777 != entry.mode | 0o600:
            self._disk.chmod(path, entry.mode | 0o600)
        if old_status is not None and status.st_mtime <= old_status.st_mtime + 1:
            seconds = time_after(old_status)
            if seconds is not None:
                self._disk.set_time(path, seconds)
                return seconds * SECOND_NS
        return status.st_mtime_ns

    def find_swaps(self, files: Iterable[Entry]) -> None:
        """Find the files that the commit can write by a mere exchange with their new content. Call
        it when all content is ready; the commit then takes less time.
        """
        for entry in files:
            path = entry.path
            source, status, digest, is_stored, is_linked, patch, mtime_ns = self.ready[path]
            if status is None or digest is None or not source or is_linked or patch is not None:
                continue
            old_entry = self._replaced_entries.get(path)
            if old_entry is not None and old_entry.digest == digest and entry.mode & 0o600 == 0o600:
                self.swaps[path] = Swap(
                    folder=parent_of(path),
                    path=f"{self._root}/{path}",
                    source=source,
                    status=status,
                    old=digest,
                    new=entry.digest,
                    is_stored=is_stored,
                    mtime_ns=mtime_ns,
                )

    def salvage(self, plan: SyncPlan, old: Manifest) -> None:
        """After an interrupted commit: find the content that it staged and that is still in the
        staging folder.

        A commit exchanges staged files with the files that they replace. So some files in the
        staging folder have a replaced content, which is found, too.
        """
        self.forget()
        self.begin(SyncPlan(files=plan.files, removes=plan.removes, replaced=plan.replaced), old)
        self._disk.finish_exchanges(self.folder)
        for folder, _, names in os.walk(self.folder):
            for path in (f"{folder}/{name}" for name in names):
                if self._in_place.salvage(path):
                    continue
                digest = digest_of(path)
                if digest is not None:
                    self._salvaged[digest] = path
        stems = [name.partition(".")[0] for name in os.listdir(self.folder)]
        self._num_places = 1 + max((int(stem) for stem in stems if stem.isdecimal()), default=0)
        self._store.rename_exchanged(self._expected)

    def return_old(self) -> None:
        """After an interrupted commit: move the replaced contents to the store."""
        for digest, path in self._salvaged.items():
            if digest in self._replaced_digests and (status := lstat(path)) is not None:
                self._store.take(path, digest, status)
        self._in_place.return_old()

    def forget(self) -> None:
        """Forget the preparations. The files in the staging folder stay."""
        self._expected, self._salvaged, self._replaced_digests = {}, {}, set()
        self._in_place.forget()
        self._on_disk.forget()
        self.num_bytes = 0
        self.ready, self.swaps, self.tops, self.folders = {}, {}, {}, {}

    def drop(self) -> None:
        """Forget the preparations, and delete all files in the staging folder."""
        self.forget()
        with os.scandir(self.folder) as listing:
            for entry in listing:
                if entry.is_dir(follow_symlinks=False):
                    remove_part(entry.path, self.folder)
                else:
                    os.unlink(entry.path)
        self._num_places = 0  # a file that could not be deleted keeps its name

    def _new_place(self) -> str:
        self._num_places += 1
        return f"{self.folder}/{self._num_places}"


def _check_size(entry: Entry, size: int) -> None:
    """Raise ``BadManifest`` if an entry's size is not the size of its content."""
    if entry.size != size:
        raise BadManifest(entry.path, f"has {size} bytes, and not the {entry.size} that are said")


MAX_PACK_BYTES = 64 << 20  # the most memory that unpacking one blob may take


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
