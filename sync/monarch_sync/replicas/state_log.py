"""StateLog: the state of a replica on disk; an update costs no more than the changes in it.

`current.2` is a whole state. Later changes are appended to `log.2`: a journal before each commit,
and a mark after it. When the log has become long, a new whole state replaces the old one, and the
log is emptied. After a crash between these two steps, the records of the log are older than the
state, and are skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from monarch_sync.content.disk import Disk
from monarch_sync.errors import BadManifest
from monarch_sync.frames import frame, read_frames
from monarch_sync.tree.entry import Entry, Row
from monarch_sync.tree.manifest import Manifest, decode_pairs, decode_paths, encode_paths

MIN_LOG_BYTES = 256 << 10


class LoggedState(NamedTuple):
    """The state of a replica, as its log has it.

    ``boot`` identifies the replica's folder and the start of the machine at the time of the record.
    If either differs now, the files are compared with the manifest before it is used.
    """

    generation: int = 0
    author: str = ""
    manifest: Manifest = Manifest()
    boot: str = ""


class Journal(msgspec.Struct, tag="commit", array_like=True):
    """The steps of a commit that is about to happen, enough to carry it out again from the state
    before the commit.

    ``moves`` and ``takes_back``: as in ``StageRequest``. ``folder_moves``: the folders that are
    renamed whole on the disk. ``seconds``: the time of the commit, since the epoch.
    """

    generation: int
    author: str
    changed: list[Row]
    removed: list[bytes]
    folder_moves: list[tuple[bytes, bytes]] = []
    boot: str = ""
    moves: list[tuple[bytes, bytes]] = []
    seconds: float = 0.0
    takes_back: bool = False

    @classmethod
    def of(cls, generation: int, author: str, old: Manifest, new: Manifest) -> Journal:
        """Return the journal of a commit that leads from ``old`` to ``new``."""
        changes = new.changes(old)
        changed = [entry.to_row() for _, _, entry in changes if entry is not None]
        removed = encode_paths(path for path, _, entry in changes if entry is None)
        return cls(generation, author, changed, removed)

    @property
    def known_moves(self) -> list[tuple[str, str]]:
        """The folders that are only renamed, as (old, new)."""
        return decode_pairs(self.moves or self.folder_moves)

    def apply(self, old: Manifest) -> Manifest:
        """Return the state that the commit makes of the state ``old``."""
        changed = map(Entry.from_row, self.changed)
        return old.replace(changed, decode_paths(self.removed), decode_pairs(self.moves))


class _Done(msgspec.Struct, tag="done", array_like=True):
    """The record that the commit of a generation is complete. ``lost`` are paths that it could not
    write."""

    generation: int
    lost: list[bytes]


class _Forgotten(msgspec.Struct, tag="forgotten", array_like=True):
    """The record of paths that were removed from the manifest, because they were deleted on the
    host."""

    generation: int
    paths: list[bytes]


class _CurrentState(msgspec.Struct, array_like=True):
    generation: int
    author: str
    manifest: bytes
    boot: str = ""


_Record = Journal | _Done | _Forgotten
_decoder: msgspec.msgpack.Decoder[_Record] = msgspec.msgpack.Decoder(_Record)


class StateLog:
    """The log of a replica's state: a file ``current`` that has a whole state, and a file with
    records of all later changes.

    If the second file has less than ``min_bytes``, no new ``current`` is written.
    """

    def __init__(self, folder: Path, disk: Disk, min_bytes: int = MIN_LOG_BYTES) -> None:
        self._current = folder / "current.2"
        self._log = folder / "log.2"
        self._disk = disk
        self._min_bytes = min_bytes
        self._current_bytes = 0
        self._log_bytes = 0
        self.state = LoggedState()
        #: The journal of a commit that has begun and is not complete.
        self.interrupted: Journal | None = None
        self._load()

    def begin(self, journal: Journal) -> None:
        """Write the journal of a commit. From then on the commit can only be completed."""
        self._append(journal)
        self.interrupted = journal

    def reach(self, manifest: Manifest) -> None:
        """Take `manifest` as the current state: the commit is complete. `end` records that on
        disk."""
        journal = self.interrupted
        assert journal is not None
        self.interrupted = None
        self.state = LoggedState(journal.generation, journal.author, manifest, journal.boot)

    def end(self, lost: list[str]) -> None:
        """Record that the commit is complete. Call it before anything else is recorded.

        ``lost`` are the paths that the commit could not write.
        """
        self._append(_Done(self.state.generation, encode_paths(lost)))

    def forget(self, paths: list[str]) -> None:
        """Remove these paths from the manifest, because they were deleted on the host, and record
        that."""
        self._append(_Forgotten(self.state.generation, encode_paths(paths)))
        self.state = self.state._replace(manifest=self.state.manifest.replace(removed=paths))

    def compact(self) -> None:
        """Write the current state as a whole and empty the log, if the log has become long."""
        if self._log_bytes > max(self._min_bytes, self._current_bytes):
            self.rewrite(self.state)

    def rewrite(self, state: LoggedState) -> None:
        """Write `state` as the new `current` file, and empty the log."""
        current = _CurrentState(state.generation, state.author, state.manifest.encode(), state.boot)
        data = msgspec.msgpack.encode(current)
        self._disk.write(self._current, data)
        self.state, self._current_bytes = state, len(data)
        self._disk.write(self._log, b"")
        self._log_bytes = 0

    def _append(self, record: _Record) -> None:
        framed = frame(record)
        # Right behind the last whole record, over the remains of a failed write.
        self._disk.append(self._log, self._log_bytes, framed)
        self._log_bytes += len(framed)

    def _load(self) -> None:
        # A file that is torn by a loss of power counts as empty: no file is ours then, and the next
        # push finds out which files are right already.
        try:
            data = self._current.read_bytes()
            current = msgspec.msgpack.decode(data, type=_CurrentState)
            manifest = Manifest.decode(current.manifest)
            self._current_bytes = len(data)
            self.state = LoggedState(current.generation, current.author, manifest, current.boot)
        except (msgspec.MsgspecError, UnicodeDecodeError, BadManifest):
            return
        except FileNotFoundError:
            pass
        for record, end in read_frames(self._log, _decoder):
            self._log_bytes = end
            self._replay(record)

    def _replay(self, record: _Record) -> None:
        journal = self.interrupted
        if isinstance(record, Journal):
            self.interrupted = record if record.generation > self.state.generation else None
        elif isinstance(record, _Forgotten):
            if record.generation != self.state.generation:
                return
            manifest = self.state.manifest.replace(removed=decode_paths(record.paths))
            self.state = self.state._replace(manifest=manifest)
        elif journal is not None and journal.generation == record.generation:
            manifest = journal.apply(self.state.manifest)
            if record.lost:
                manifest = manifest.replace(removed=decode_paths(record.lost))
            self.state = LoggedState(journal.generation, journal.author, manifest, journal.boot)
            self.interrupted = None
