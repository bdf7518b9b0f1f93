"""The host's end: a folder that mirrors a workspace.

What is staged lies beside the folder (`state_folder.py`), on the same file system.
A commit writes a journal first and then renames; if it is cut short at any point, the next start
(or, where the disk failed, the next message) carries the journal out to its end. So the folder
holds the old state or, after recovery, the new one. What can be done after the answer, to keep
what was replaced and to note the end, waits for `settle`, or for the next message. No fsync: after
a reboot every file is read once, what is not as it was left is no longer claimed, and so the next
push brings it again.

Several authors: the last one wins. A stage whose base is not the current state is answered with
`Need(whole)`, a generation that is not newer than ours with `Refused("stale")`.

Only what we put there is ours: a path that no manifest of ours held is never touched, and a file
of ours that was changed on the host is kept under another name before it is replaced.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from monarch_sync.commit import Committer
from monarch_sync.diff import Plan, diff
from monarch_sync.disk import Content, Disk
from monarch_sync.entry import to_wire
from monarch_sync.errors import BadManifest, BadMessage, ReplicaBusy
from monarch_sync.ground import Ground
from monarch_sync.history import History, Past
from monarch_sync.manifest import Manifest, decode_pairs
from monarch_sync.messages import (
    Abort,
    Aborted,
    Blob,
    Commit,
    Committed,
    Message,
    Need,
    Question,
    Refused,
    Stage,
    Supply,
)
from monarch_sync.mounts import mounted_inside
from monarch_sync.pending import Pending
from monarch_sync.recall import answer
from monarch_sync.staging import Staging
from monarch_sync.stamps import Stamps, digest_of
from monarch_sync.state_folder import make_state_folder
from monarch_sync.state_log import StateLog
from monarch_sync.states import States, manifest_of
from monarch_sync.store import Store
from monarch_sync.whole_folders import WholeFolders

__all__ = ["SETTLE_SECONDS", "Replica"]

# After a commit, until `settle` is due: while all that waited for the new files gets to work, the
# disk and the processor are theirs.
SETTLE_SECONDS = 0.05
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ANEW = Need([], whole=True)


class Replica:
    """One mirrored folder. Not for several threads at once.

    Raises ``ReplicaBusy`` if another process keeps the same folder.
    """

    def __init__(self, root: str | os.PathLike[str], disk: Disk | None = None) -> None:
        self.root = Path(root)
        self._disk = disk or Disk()
        self._state = make_state_folder(self.root)
        self._lock = open(self._state / "lock", "w")  # noqa: SIM115  held as long as we live
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._open()
        except BaseException as error:
            self._lock.close()  # or the next try, in this process, would find it kept
            if isinstance(error, BlockingIOError):
                raise ReplicaBusy(str(self._state)) from None
            raise

    def _open(self) -> None:
        self._stamps = Stamps()
        self._store = Store(self._state / "store", self._disk, self._stamps)
        root = os.fspath(self.root)
        self._ground = Ground(root, self._store, self._stamps)
        place = os.fspath(self._state / "stage")
        self._staging = Staging(place, self._ground, self._store, self._disk)
        self._folders = WholeFolders(root)
        self._states = States()
        self._pending: Pending | None = None
        self._unsettled: Committer | None = None
        self._log = StateLog(self._state, self._disk)
        going = self._log.interrupted
        self._history = History(
            self._state, self._disk, going.generation if going else self.generation
        )
        self._boot = _boot_id()
        self._note_reboot()
        with contextlib.suppress(OSError):  # The next message tries again, and says why not.
            self._recover()

    @property
    def state_folder(self) -> Path:
        """Where it keeps what it knows, and what is not shown."""
        return self._state

    @property
    def generation(self) -> int:
        """The number of the state that the folder holds; 0 before the first."""
        return self._log.state.generation

    @property
    def author(self) -> str:
        """Who pushed it."""
        return self._log.state.author

    @property
    def manifest(self) -> Manifest:
        """What of the folder is ours."""
        return self._log.state.manifest

    @property
    def staged_bytes(self) -> int:
        """How much of what is being staged has come so far. May be asked from any thread."""
        return self._staging.num_bytes

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock.close()

    def handle(self, message: Message, blobs: Sequence[Content] = ()) -> Message:
        """Answer one message of a push. Errors of the disk come back as ``Refused``."""
        try:
            self._settle()
            if self._is_interrupted():
                self._recover()
            if isinstance(message, Stage):
                return self.stage(message, blobs)
            if isinstance(message, Supply):
                return self.supply(message, blobs)
            if isinstance(message, Commit):
                return self.commit(message.generation)
            if isinstance(message, Abort):
                return self.abort(message.generation)
        except OSError as error:
            fault = self._disk_fault(error)
            if error.errno in _FULL and self._make_room(message, blobs):
                return self.handle(message, blobs) if isinstance(message, Stage) else _ANEW
            return fault
        if isinstance(message, Question):
            try:
                return answer(self, message)
            except OSError as error:
                return Refused("disk", error.strerror or str(error), str(error.filename or ""))
        return Refused("unexpected", f"a replica answers no {type(message).__name__}")

    @property
    def is_settled(self) -> bool:
        """Whether nothing was left for after the answer to a commit."""
        return self._unsettled is None

    def settle(self) -> None:
        """Do what was left for after the answer to a commit. To be called once that is sent and
        nothing else comes; what fails here is tried again with the next message."""
        with contextlib.suppress(OSError):
            self._settle()

    def _settle(self) -> None:
        committer = self._unsettled
        if committer is None:
            return
        committer.settle()
        try:
            self._log.end(committer.lost)
        except OSError as error:
            if error.errno not in _FULL or not self._store.num_bytes:
                raise
            self._store.trim(0)  # what was there before gives way to what is there now
            self._log.end(committer.lost)
        self._unsettled = None
        self._staging.drop()
        self._store.trim()
        with contextlib.suppress(OSError):  # It is only shorter; the log has it all.
            self._log.compact()

    def _disk_fault(self, error: OSError) -> Refused:
        where = os.fspath(error.filename) if error.filename else str(self.root)
        reason = error.strerror or str(error)
        if not self._state.is_dir():
            where, reason = str(self._state), "it was removed while in use: start it anew"
        elif self._is_interrupted():
            # Past the point of no return: what is staged is needed to get to the end.
            reason += "; the commit was cut short, and goes on with the next message"
            return Refused("interrupted", reason, where, self.generation)
        if self._unsettled is None:
            with contextlib.suppress(OSError):  # It may be the stage that is broken.
                self._drop_stage()
        return Refused("disk", reason, where, self.generation)

    def _make_room(self, message: Message, blobs: Sequence[Content]) -> bool:
        """On a full disk: whether what is kept of earlier states has given way to a new one, which
        could fit then."""
        is_staging = isinstance(message, Stage | Supply) and self._pending is None
        room = self._store.num_bytes
        if not is_staging or not room or self._is_interrupted() or self._unsettled is not None:
            return False
        if room + shutil.disk_usage(self.root).free < sum(map(len, blobs)):
            return False
        self._store.trim(0)
        return True

    def _is_interrupted(self) -> bool:
        return self._log.interrupted is not None

    def past(self) -> Iterator[Past]:
        """The generations that were here, this one first, as far as they are remembered."""
        return self._history.walk(self.manifest, self._store.has)

    def missing(self, digests: Sequence[bytes]) -> list[bytes]:
        """Those of these contents that are not here, as far as is known without a look at them;
        `find` makes sure."""
        shown, is_stored = self.manifest.paths_of(digests), self._store.has
        return [digest for digest in digests if digest not in shown and not is_stored(digest)]

    def find(self, digest: bytes) -> str | None:
        """A file with this content, now."""
        found = self._ground.find(digest, self.manifest.path_of(digest))
        return None if found is None else found[0]

    def stage(self, stage: Stage, blobs: Sequence[Content]) -> Message:
        """Get a state ready beside the folder. Nothing visible changes."""
        if stage.generation <= self.generation:
            return Refused(
                "stale", f"generation {self.generation} is here already, pushed by {self.author}",
                current=self.generation,
            )  # fmt: skip
        if not self._ground.is_there():
            self.root.mkdir(parents=True)
            self._forget_missing()
        if stage.base and stage.base != self.manifest.digest:
            return Need([], whole=True)
        known = self._states.find(stage)
        try:
            manifest = known or manifest_of(stage, self.manifest)
        except BadManifest as error:
            return Refused("bad-manifest", str(error), error.path, self.generation)
        if self._pending is not None:
            self._drop_stage()
        if not stage.base:
            self._forget_missing()
        plan = self._plan(manifest, stage)
        self._pending = Pending(stage, self.manifest, manifest, plan, is_told=known is None)
        self._staging.begin(plan, self.manifest)
        return self._go_on(self._pending, stage.blobs, blobs)

    def supply(self, supply: Supply, blobs: Sequence[Content]) -> Message:
        """Take in more for what is being staged."""
        pending = self._pending
        if pending is None or pending.stage.generation != supply.generation:
            return _ANEW
        return self._go_on(pending, supply.blobs, blobs)

    def _plan(self, new: Manifest, stage: Stage) -> Plan:
        supplied = {blob.digest for blob in stage.blobs}
        supplied.update(digest for blob in stage.blobs for digest, _ in blob.parts)
        store = self._store
        # Who says what changed since the last state, has looked for folders that moved.
        moves = decode_pairs(stage.moves) if stage.base else None
        plan = diff(self.manifest, new, moves, lambda d: d in supplied or store.has(d))
        return plan if self._can_move(plan) else diff(self.manifest, new, ())

    def _can_move(self, plan: Plan) -> bool:
        """Whether all folders that are to move have nothing in them but what is ours, and can."""
        can_move, now = self._folders.can_move, self.manifest
        mounts = mounted_inside(os.fspath(self.root)) if plan.folders_moved else set()
        return all(
            before not in mounts and can_move(before, now) for before, _ in plan.folders_moved
        )

    def _go_on(
        self, pending: Pending, blobs: Sequence[Blob], contents: Sequence[Content]
    ) -> Message:
        try:
            for blob, content in zip(blobs, contents, strict=False):
                self._staging.add(blob, content)
        except BadMessage as error:
            self._drop_stage()
            return Refused("damaged", str(error))
        missing = self._fetch(pending.plan, pending.new)
        if missing:
            return Need(missing)
        self._ground.check_open(pending.plan)
        self._ground.check_unmounted(pending.plan)
        self._staging.line_up(pending.plan.files)
        self._pending = pending.lined_up(self._history, self._boot)
        return pending.staged(self._where)

    def _fetch(self, plan: Plan, new: Manifest) -> list[bytes]:
        """See that every content is to be had; the digests of those that are not."""
        missing: dict[bytes, None] = {}
        moved, fetch = plan.moved, self._staging.fetch
        for entry in plan.files:
            source = moved.get(entry.path)
            is_going = source is not None and source not in new
            if not fetch(entry, source, is_going=is_going):
                missing[entry.digest] = None
        for entry in plan.removes:
            if entry.is_file:
                # Looked at now, so that the commit is short.
                self._ground.look(entry.path)
        return list(missing)

    def _forget_missing(self) -> None:
        """Claim no more what somebody took away here, so that it is brought again."""
        paths = (entry.path for entry in self.manifest)
        gone = [path for path in paths if not os.path.lexists(f"{self.root}/{path}")]
        if gone:
            self._note_lost(self.manifest, gone)
            self._log.forget(gone)

    def _note_lost(self, manifest: Manifest, paths: list[str]) -> None:
        entries = [entry for entry in map(manifest.get, paths) if entry is not None]
        # What the history cannot lead to any more, it says so.
        with contextlib.suppress(OSError):
            self._history.lost(self.generation, entries)

    def _where(self, path: str) -> str:
        """Where a file's new content lies now, or will once it is patched."""
        ready = self._staging.ready[path]
        return ready.place if ready.place and ready.patch is None else f"{self.root}/{path}"

    def commit(self, generation: int) -> Message:
        """Show what was staged. Asked again, because the answer was lost: the same answer."""
        if generation == self.generation:
            return Committed(generation, [])
        pending = self._pending
        if pending is None or pending.journal is None or pending.stage.generation != generation:
            return Refused("not-staged", f"generation {generation} was not staged here")
        if not self._can_move(pending.plan):
            pending = self._file_by_file(pending)
        assert pending.journal is not None
        self._history.put(pending.record)
        try:
            self._log.begin(pending.journal)
        except OSError:
            self._history.take_back()
            raise
        kept = self._carry_out(pending.new, pending.plan)
        return Committed(generation, [to_wire(name) for name in kept])

    def _file_by_file(self, pending: Pending) -> Pending:
        """The same, but for folders that were to move: somebody has put a file of theirs into one
        of them meanwhile, which is to stay where it is."""
        plan = diff(self.manifest, pending.new, ())
        self._staging.salvage(plan, self.manifest)
        self._fetch(plan, pending.new)
        return pending._replace(plan=plan).lined_up(self._history, self._boot)

    def abort(self, generation: int) -> Message:
        """Drop what was staged."""
        if self._pending is not None and self._pending.stage.generation == generation:
            self._drop_stage()
        return Aborted(generation)

    def _carry_out(self, new: Manifest, plan: Plan, *, is_repeated: bool = False) -> list[str]:
        root = os.fspath(self.root)
        committer = Committer(
            root, self._staging, self._store, self._disk, self._stamps, self._folders,
            self.manifest, is_repeated=is_repeated,
        )  # fmt: skip
        kept = committer.carry_out(plan, new)
        whole = new
        if committer.lost:
            new = new.replace(removed=committer.lost)
        self._log.reach(new)
        self._states.note(new)
        self._note_lost(whole, committer.lost)
        self._pending = None
        self._unsettled = committer
        return kept

    def _note_reboot(self) -> None:
        """After a loss of power we claim what is as we left it, and nothing else."""
        state = self._log.state
        if state.boot == self._boot or not state.generation:
            return
        damaged = self._damaged(state.manifest)
        sound = state.manifest.replace(removed=damaged)
        self._log.state = state._replace(manifest=sound, boot=self._boot)
        if self._log.interrupted is None:
            self._note_lost(state.manifest, damaged)
            with contextlib.suppress(OSError):
                self._log.rewrite(self._log.state)

    def _damaged(self, manifest: Manifest) -> list[str]:
        """The files that do not hold what the manifest says."""
        files = (entry for entry in manifest if entry.is_file)
        return [e.path for e in files if digest_of(f"{self.root}/{e.path}") != e.digest]

    def _recover(self) -> None:
        """Finish a commit that was cut short; forget a stage that was never committed."""
        journal = self._log.interrupted
        if journal is None:
            self._drop_stage()
            return
        old, new = self.manifest, journal.apply(self.manifest)
        plan = diff(old, new, decode_pairs(journal.folder_moves))
        self._staging.salvage(plan, old)
        self._fetch(plan, new)
        self._carry_out(new, plan, is_repeated=True)
        self._staging.return_old()
        self._settle()

    def _drop_stage(self) -> None:
        self._pending = None
        self._staging.drop()


def _boot_id() -> str:
    """What tells one start of this machine from the next; "" where there is no such thing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
