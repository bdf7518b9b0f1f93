"""The host's end: a folder that mirrors a workspace.

What is staged lies beside the folder's content, in its own `.monarch`, on the same file system.
A commit writes a journal first and then renames; if it is cut short at any point, the next start
(or, where the disk failed, the next message) carries the journal out to its end. So the folder
holds the old state or, after recovery, the new one. No fsync: after a reboot every file is read
once, what is not as it was left is no longer claimed, and so the next push brings it again.

Several authors: the last one wins. A stage whose base is not the current state is answered with
`Need(whole)`, a generation that is not newer than ours with `Refused("stale")`.

Only what we put there is ours: a path that no manifest of ours held is never touched, and a file
of ours that was changed on the host is kept under another name before it is replaced.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from monarch_sync.commit import Committer, Journal
from monarch_sync.diff import Plan, diff
from monarch_sync.digest import digest_bytes, digest_stream
from monarch_sync.disk import Disk
from monarch_sync.entry import RESERVED, Entry, to_wire
from monarch_sync.errors import BadManifest, ReplicaBusy
from monarch_sync.manifest import Manifest, decode_paths
from monarch_sync.messages import (
    Abort,
    Aborted,
    Commit,
    Committed,
    Message,
    Need,
    Refused,
    Stage,
    Staged,
)
from monarch_sync.store import Store

__all__ = ["Replica"]

Content = bytes | bytearray | memoryview


class _Current(msgspec.Struct, array_like=True):
    """What the folder holds, as it is noted on disk."""

    generation: int
    author: str
    manifest: bytes
    boot: str = ""


class _Pending(NamedTuple):
    """A state that is ready, or waits for content."""

    stage: Stage
    manifest: Manifest
    plan: Plan
    is_ready: bool = False


class Replica:
    """One mirrored folder. Not for several threads at once.

    Raises ``ReplicaBusy`` if another process keeps the same folder.
    """

    def __init__(self, root: str | os.PathLike[str], disk: Disk | None = None) -> None:
        self.root = Path(root)
        self._disk = disk or Disk()
        self._state = self.root / RESERVED
        self._state.mkdir(parents=True, exist_ok=True)
        self._lock = open(self._state / "lock", "w")  # noqa: SIM115  held as long as we live
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise ReplicaBusy(str(self._state)) from None
        self._store = Store(self._state / "store", self._disk)
        self._staging = self._state / "stage"
        self._pending: _Pending | None = None
        self.generation = 0
        self.author = ""
        self.manifest = Manifest()
        self._load()
        with contextlib.suppress(OSError):  # The next message tries again, and says why not.
            self._recover()

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock.close()

    def handle(self, message: Message, blobs: Sequence[Content] = ()) -> Message:
        """Answer one message of a push. Errors of the disk come back as ``Refused``."""
        try:
            if self._is_interrupted():
                self._recover()
            if isinstance(message, Stage):
                return self.stage(message, blobs)
            if isinstance(message, Commit):
                return self.commit(message.generation)
            if isinstance(message, Abort):
                return self.abort(message.generation)
        except OSError as error:
            return self._disk_fault(error)
        return Refused("unexpected", f"a replica answers no {type(message).__name__}")

    def _disk_fault(self, error: OSError) -> Refused:
        where = os.fspath(error.filename) if error.filename else str(self.root)
        reason = error.strerror or str(error)
        if self._is_interrupted():
            # Past the point of no return: what is staged is needed to get to the end.
            reason += "; the commit was cut short, and goes on with the next message"
            return Refused("interrupted", reason, where, self.generation)
        self._drop_stage()
        return Refused("disk", reason, where, self.generation)

    def _is_interrupted(self) -> bool:
        return (self._state / "journal").exists()

    def stage(self, stage: Stage, blobs: Sequence[Content]) -> Message:
        """Get a state ready beside the folder. Nothing visible changes."""
        if stage.generation <= self.generation:
            return Refused(
                "stale", f"generation {self.generation} is here already, pushed by {self.author}",
                current=self.generation,
            )  # fmt: skip
        try:
            manifest = self._manifest_of(stage)
        except BadManifest as error:
            return Refused("bad-manifest", str(error), error.path, self.generation)
        if manifest is None:
            return Need([], whole=True)
        pending = self._pending
        if pending is None or pending.stage.digest != stage.digest:
            self._drop_stage()
            self._staging.mkdir(parents=True, exist_ok=True)
        if not stage.base:
            self._forget_missing()
        plan = diff(self.manifest, manifest)
        self._pending = _Pending(stage, manifest, plan)
        for blob, content in zip(stage.blobs, blobs, strict=False):
            if digest_bytes(content) != blob.digest:
                self._drop_stage()
                return Refused("damaged", "a content does not have the digest that it should")
            self._disk.write(self._place(blob.digest), content)
        missing = [e.digest for e in plan.files if not self._fetch(e, plan.moved.get(e.path))]
        if missing:
            return Need(list(dict.fromkeys(missing)))
        self._pending = self._pending._replace(is_ready=True)
        return self._staged(self._pending)

    def _manifest_of(self, stage: Stage) -> Manifest | None:
        """The manifest that a stage tells of; ``None`` if its base is not what we have."""
        if stage.base:
            if stage.base != self.manifest.digest:
                return None
            changed = [Entry.from_row(row) for row in stage.changed]
            removed = decode_paths(stage.removed)
            manifest = self.manifest.replace(changed, removed)
            manifest.check(self.manifest)
        else:
            manifest = Manifest.from_rows(stage.changed, stage.digest_name)
        if manifest.digest != stage.digest:
            raise BadManifest("", "does not have the digest that it was announced with")
        return manifest

    def _forget_missing(self) -> None:
        """Claim no more what somebody took away here, so that it is brought again."""
        paths = (entry.path for entry in self.manifest)
        gone = [path for path in paths if not os.path.lexists(self.root / path)]
        if gone:
            self.manifest = self.manifest.replace(removed=gone)

    def _place(self, digest: bytes) -> Path:
        return self._staging / digest.hex()

    def _fetch(self, entry: Entry, source: str | None) -> bool:
        """See that a content lies in the staging folder: it came, or it is on this host."""
        place = self._place(entry.digest)
        if place.exists():
            return True
        candidates = [self.root / source] if source else []
        if (stored := self._store.find(entry.digest)) is not None:
            candidates.append(stored)
        for candidate in candidates:
            if _digest_of(candidate) == entry.digest:
                self._disk.copy(candidate, place, 0o600)
                return True
        return False

    def _staged(self, pending: _Pending) -> Staged:
        plan = pending.plan
        files = [
            (to_wire(entry.path), to_wire(str(self._place(entry.digest)))) for entry in plan.files
        ]
        gone = [e for e in plan.removes if e.is_file and pending.manifest.get(e.path) is None]
        files += [(to_wire(entry.path), b"") for entry in gone]
        num_files = sum(entry.is_file for entry in pending.manifest)
        return Staged(
            pending.stage.generation, files, len(plan.files) - len(plan.moved), len(plan.moved),
            len(gone), num_files - len(plan.files),
        )  # fmt: skip

    def commit(self, generation: int) -> Message:
        """Show what was staged. Asked again, because the answer was lost: the same answer."""
        if generation == self.generation:
            return Committed(generation, [])
        pending = self._pending
        if pending is None or not pending.is_ready or pending.stage.generation != generation:
            return Refused("not-staged", f"generation {generation} was not staged here")
        stage, plan = pending.stage, pending.plan
        journal = Journal.of(generation, stage.author, self.manifest, pending.manifest)
        self._disk.write(self._state / "journal", journal.encode())
        kept = self._carry_out(journal, pending.manifest, plan)
        return Committed(generation, [to_wire(name) for name in kept])

    def abort(self, generation: int) -> Message:
        """Drop what was staged."""
        if self._pending is not None and self._pending.stage.generation == generation:
            self._drop_stage()
        return Aborted(generation)

    def _carry_out(self, journal: Journal, new: Manifest, plan: Plan) -> list[str]:
        committer = Committer(self.root, self._staging, self._store, self._disk, self.manifest)
        kept = committer.carry_out(plan)
        if committer.lost:
            new = new.replace(removed=committer.lost)
        current = _Current(journal.generation, journal.author, new.encode(), _boot_id())
        self._disk.write(self._state / "current", msgspec.msgpack.encode(current))
        self._disk.unlink(self._state / "journal")
        self.generation, self.author, self.manifest = journal.generation, journal.author, new
        self._drop_stage()
        self._store.trim()
        return kept

    def _load(self) -> None:
        # Torn by a loss of power: we claim nothing, and the next push finds what is right already.
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError, BadManifest):
            data = (self._state / "current").read_bytes()
            current = msgspec.msgpack.decode(data, type=_Current)
            manifest = Manifest.decode(current.manifest)
            if current.boot != _boot_id():
                manifest = manifest.replace(removed=self._damaged(manifest))
            self.generation, self.author = current.generation, current.author
            self.manifest = manifest

    def _damaged(self, manifest: Manifest) -> list[str]:
        """The files that do not hold what the manifest says."""
        files = (entry for entry in manifest if entry.is_file)
        return [e.path for e in files if _digest_of(self.root / e.path) != e.digest]

    def _recover(self) -> None:
        """Finish a commit that was cut short; forget a stage that was never committed."""
        try:
            data = (self._state / "journal").read_bytes()
        except FileNotFoundError:
            self._drop_stage()
            return
        journal = Journal.decode(data)
        if journal is not None and journal.generation > self.generation:
            new = journal.apply(self.manifest)
            self._carry_out(journal, new, diff(self.manifest, new))
        else:
            self._disk.unlink(self._state / "journal")
            self._drop_stage()

    def _drop_stage(self) -> None:
        self._pending = None
        shutil.rmtree(self._staging, ignore_errors=True)


def _boot_id() -> str:
    """What tells one start of this machine from the next; "" where there is no such thing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _digest_of(path: Path) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        return digest_stream(file)[0]
