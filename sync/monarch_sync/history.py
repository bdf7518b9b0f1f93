"""History: which states a replica has had, and how to get back to each of them.

Each commit is recorded once it has been answered: its author, its time, its digest, what changed,
and the entries that were there before. Applied to the present manifest from the newest on, the
records give every earlier state; its digest proves it. The contents are kept elsewhere, in the
store, so the entries of a state may be known while contents of it are missing. The oldest records
are dropped when there are too many.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from monarch_sync.content.disk import Disk
from monarch_sync.errors import BadManifest
from monarch_sync.frames import frame, frames_in, read_frames
from monarch_sync.tree.diff import find_moved_folders
from monarch_sync.tree.entry import Entry, Row
from monarch_sync.tree.manifest import (
    EntryChange,
    Manifest,
    decode_pairs,
    decode_paths,
    encode_pairs,
    encode_paths,
)

_MAX_BYTES = 32 << 20
_MAX_RECORDS = 500
_MAX_PATHS = 20  # named in a record


class _Pushed(msgspec.Struct, tag="pushed", array_like=True):
    """The record of a commit, with the changes that restore the state before the commit.

    ``paths`` names the first of the ``num_changed`` files that the commit changed. ``moves_back``,
    ``put_back`` and ``take_away`` are the changes that undo it; they are empty in the first record.
    ``takes_back``: this commit restored the state before the previous generation, because a process
    could not switch to that generation.
    """

    generation: int
    seconds: float
    author: str
    digest: bytes
    num_files: int
    num_changed: int
    paths: list[bytes]
    put_back: list[Row] = []
    take_away: list[bytes] = []
    moves_back: list[tuple[bytes, bytes]] = []
    takes_back: bool = False


class _Lost(msgspec.Struct, tag="lost", array_like=True):
    """The record of entries that this replica stopped owning, though no push removed them, such as
    files that were deleted on the host."""

    generation: int
    put_back: list[Row]


_Record = _Pushed | _Lost
_decoder: msgspec.msgpack.Decoder[_Record] = msgspec.msgpack.Decoder(_Record)


class PastGeneration(NamedTuple):
    """One earlier generation, from the records. ``seconds``: when it was committed, since the
    epoch, by this host's clock.

    ``manifest`` is None if it can no longer be computed from the records. ``missing``: the digests
    of contents that this host no longer has. ``is_taken_back``: the generation was committed, but a
    process could not switch to it, and so the next generation undid it.
    """

    generation: int
    seconds: float
    author: str
    digest: bytes
    num_files: int
    num_changed: int
    paths: list[str]
    manifest: Manifest | None
    missing: frozenset[bytes]
    is_taken_back: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether this host alone could restore the generation."""
        return self.manifest is not None and not self.missing


class History:
    """The records in a replica's state folder."""

    def __init__(
        self, folder: Path, disk: Disk, generation: int, max_records: int = _MAX_RECORDS
    ) -> None:
        self._file = folder / "history.2"  # Without the 2, it had other digests.
        self._disk = disk
        self._max_records = max_records
        self._num_bytes = 0
        self._num_records = 0
        #: The latest generation that is recorded.
        self.newest = 0
        # The record of a commit that never began is overwritten.
        for record, end in read_frames(self._file, _decoder):
            if record.generation > generation:
                break
            self._num_bytes, self._num_records = end, self._num_records + 1
            if isinstance(record, _Pushed):
                self.newest = record.generation

    def add(
        self,
        generation: int,
        author: str,
        old: Manifest,
        new: Manifest,
        seconds: float,
        moves: Sequence[tuple[str, str]] | None = None,
        *,
        takes_back: bool = False,
    ) -> None:
        """Record a commit. Call it before any later event is recorded, such as a loss of entries.

        ``moves``: the folders that were only renamed, as (old, new); None: they are searched for.
        They are recorded as moves, not file by file.
        """
        moves, back = _way_back(old, new, moves)
        files = [path for path, _, was in back if _is_file(was) or _is_file(new.get(path))]
        moved_folders = tuple(f"{folder}/" for folder, _ in moves)
        num_changed = sum(not path.startswith(moved_folders) for path in files)
        for moved, _ in moves:
            num_changed += new.folder(moved).num_files
            files += itertools.islice(new.files_below(moved), max(0, _MAX_PATHS - len(files)))
        record = _Pushed(
            generation=generation,
            seconds=seconds,
            author=author,
            digest=new.digest,
            num_files=new.num_files,
            num_changed=num_changed,
            paths=encode_paths(files[:_MAX_PATHS]),
            moves_back=encode_pairs(moves),
            takes_back=takes_back,
        )
        if len(old):
            record.put_back = [was.to_row() for _, _, was in back if was is not None]
            record.take_away = encode_paths(path for path, _, was in back if was is None)
        self._put(record)
        self.newest = generation

    def lost(self, generation: int, entries: list[Entry]) -> None:
        """Record that this replica no longer owns these entries."""
        if entries:
            self._put(_Lost(generation, [entry.to_row() for entry in entries]))

    def walk(self, current: Manifest, has: Callable[[bytes], bool]) -> Iterator[PastGeneration]:
        """Yield the generations, newest first, starting from the manifest ``current``.

        ``has`` tells whether this host has a content that is not part of the current state.
        """
        state = current
        missing: dict[str, bytes] = {}
        is_kept = {entry.digest: True for entry in current if entry.is_file}
        records = read_frames(self._file, _decoder)
        taken_back = 0
        for record in reversed([record for record, end in records if end <= self._num_bytes]):
            if isinstance(record, _Pushed):
                is_proven = state.digest == record.digest
                yield PastGeneration(
                    generation=record.generation,
                    seconds=record.seconds,
                    author=record.author,
                    digest=record.digest,
                    num_files=record.num_files,
                    num_changed=record.num_changed,
                    paths=decode_paths(record.paths),
                    manifest=state if is_proven else None,
                    missing=frozenset(missing.values()),
                    is_taken_back=record.generation == taken_back,
                )
                taken_back = record.generation - 1 if record.takes_back else 0
            try:
                entries = [Entry.from_row(row) for row in record.put_back]
            except BadManifest:
                return
            removed = decode_paths(record.take_away) if isinstance(record, _Pushed) else []
            moves = decode_pairs(record.moves_back) if isinstance(record, _Pushed) else []
            try:
                state = state.replace(entries, removed, moves)
            except BadManifest:
                return
            for old_path, new_path in moves:
                for path in [path for path in missing if path.startswith(f"{old_path}/")]:
                    missing[new_path + path[len(old_path) :]] = missing.pop(path)
            for path in removed:
                missing.pop(path, None)
            for entry in entries:
                missing.pop(entry.path, None)
                if not entry.is_file:
                    continue
                if entry.digest not in is_kept:
                    is_kept[entry.digest] = has(entry.digest)
                if not is_kept[entry.digest]:
                    missing[entry.path] = entry.digest

    def _put(self, record: _Record) -> None:
        framed = frame(record)
        self._disk.append(self._file, self._num_bytes, framed)
        self._num_bytes += len(framed)
        self._num_records += 1
        if self._num_bytes > _MAX_BYTES or self._num_records > self._max_records:
            self._shorten()

    def _shorten(self) -> None:
        """Drop the older half of the records."""
        data = self._file.read_bytes()[: self._num_bytes]
        starts = [0, *(end for _, end in frames_in(data))][:-1]
        newest = starts[-(self._max_records // 2) :]
        kept = [start for start in newest if self._num_bytes - start <= _MAX_BYTES // 2]
        # The latest is kept even if it alone is larger: it leads back to the state before.
        kept = kept or starts[-1:]
        with contextlib.suppress(OSError):  # It is only too long; the next record tries again.
            self._disk.write(self._file, data[kept[0] :])
            self._num_bytes -= kept[0]
            self._num_records = len(kept)


def _way_back(
    old: Manifest, new: Manifest, moves: Sequence[tuple[str, str]] | None
) -> tuple[list[tuple[str, str]], list[EntryChange]]:
    """Return the changes that lead from ``new`` back to ``old``: folders to move first, then the
    other changes."""
    if moves is None:
        back = find_moved_folders(new, old) if len(old) else []
    else:
        back = [(new_path, old_path) for old_path, new_path in reversed(moves)]
    if back:
        with contextlib.suppress(BadManifest):  # Another entry is at an old path now.
            return back, old.changes(new.replace(moves=back))
    return [], [EntryChange(path, after, before) for path, before, after in new.changes(old)]


def _is_file(entry: Entry | None) -> bool:
    return entry is not None and entry.is_file
