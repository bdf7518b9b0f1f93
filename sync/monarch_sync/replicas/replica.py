"""The host's end: a folder that mirrors a workspace.

Staged files are kept beside the folder (`state_folder.py`), on the same file system. A commit
writes a journal first and then renames; if it is interrupted, the next start (or, after a disk
error, the next message) carries out the rest of the journal. So the folder holds the old state or,
after recovery, the new one (`completion.py`). There is no fsync: after a reboot, files that are not
as we left them no longer count as ours, so the next push brings them again.

If there are several authors, the last one wins. A stage whose base is not the current state is
answered with `Need(whole)`, a generation that is not newer than ours with `Refused("stale")`.

Only files that we put there are ours: a path that was in no manifest of ours is never touched, and
a file of ours that was changed on the host is kept under another name before it is replaced.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path

from monarch_sync.content.disk import Content, Disk
from monarch_sync.content.stamps import TICK_NS, Stamps
from monarch_sync.errors import BadManifest, BadMessage
from monarch_sync.history import History, PastGeneration
from monarch_sync.messages import (
    Abort,
    Aborted,
    Blob,
    Commit,
    Committed,
    Instalment,
    Message,
    Need,
    Question,
    Refused,
    StageRequest,
    Supply,
)
from monarch_sync.mounts import mounted_inside
from monarch_sync.replicas.ahead import Ahead
from monarch_sync.replicas.completion import FULL, Completion, read_boot_id
from monarch_sync.replicas.on_disk import OnDisk
from monarch_sync.replicas.pending import Pending
from monarch_sync.replicas.recall import Recall
from monarch_sync.replicas.staging import Staging
from monarch_sync.replicas.state_folder import FolderLock, make_state_folder
from monarch_sync.replicas.state_log import MIN_LOG_BYTES, StateLog
from monarch_sync.replicas.states import States, manifest_of
from monarch_sync.replicas.store import ContentStore
from monarch_sync.replicas.whole_folders import WholeFolders
from monarch_sync.tree.diff import SyncPlan, diff
from monarch_sync.tree.entry import to_wire
from monarch_sync.tree.manifest import Manifest, decode_pairs

# From a commit until `settle` should be called: programs that waited for the new files use the disk
# and the processor first.
SETTLE_SECONDS = 0.05
_NEED_WHOLE = Need([], whole=True)
_NO_SUCH_NAMES = (
    "file names are in {} there, which lacks a character of this one. Start that host's agent with "
    "PYTHONUTF8=1, or in a UTF-8 locale, as LANG=C.UTF-8"
)
_DIGEST = itemgetter(0)  # of a part
_MAX_GENERATION = 1 << 53  # After the greatest number of all, no author could push any more.


class Replica:
    """One mirrored folder. Not for several threads at once.

    Raises ``ReplicaBusy`` if another process has a replica of the same folder, as far as the file
    system can tell. ``tick_ns``: as in `Stamps`; ``min_log_bytes``: as in `StateLog`; ``boot_id``
    returns an id of this start of the machine.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        disk: Disk | None = None,
        *,
        tick_ns: int = TICK_NS,
        min_log_bytes: int = MIN_LOG_BYTES,
        boot_id: Callable[[], str] = read_boot_id,
    ) -> None:
        self.root = Path(root)
        self._disk = disk or Disk()
        self._state = make_state_folder(self.root)
        self._lock = FolderLock(self._state)
        try:
            self._open(tick_ns, min_log_bytes, boot_id())
        except BaseException:
            self._lock.release()  # or the next try, in this process, would find the folder locked
            raise

    def _open(self, tick_ns: int, min_log_bytes: int, boot_id: str) -> None:
        self._stamps = Stamps(tick_ns)
        self._store = ContentStore(self._state / "store", self._disk, self._stamps)
        root = os.fspath(self.root)
        self._on_disk = OnDisk(root, self._disk, self._store, self._stamps)
        self._staging = Staging(os.fspath(self._state / "stage"), self._on_disk)
        self._ahead = Ahead(self._on_disk, self._staging)
        self._folders = WholeFolders(root, os.fspath(self._state), tick_ns)
        self._states = States()
        #: The state that is being staged.
        self._pending: Pending | None = None
        #: Whether `_states` lacks the present state, until the commit of it is settled.
        self._is_new = False
        self._log = StateLog(self._state, self._disk, min_log_bytes)
        journal = self._log.interrupted
        self._history = History(
            self._state, self._disk, journal.generation if journal else self.generation
        )
        self._recall = Recall(self._log, self._history, self._on_disk)
        self._completion = Completion(
            on_disk=self._on_disk,
            log=self._log,
            history=self._history,
            staging=self._staging,
            folders=self._folders,
            boot_id=boot_id,
        )
        self._completion.note_reboot()
        with contextlib.suppress(OSError):  # The next message tries again, and says why not.
            self._recover()

    @property
    def state_folder(self) -> Path:
        """The folder for the replica's notes, and for content that is not visible yet."""
        return self._state

    @property
    def generation(self) -> int:
        """The generation that the folder shows; 0 before the first push."""
        return self._log.state.generation

    @property
    def author(self) -> str:
        """The author of the present state."""
        return self._log.state.author

    @property
    def manifest(self) -> Manifest:
        """The entries of the folder that came by pushes."""
        return self._log.state.manifest

    @property
    def staged_bytes(self) -> int:
        """How many bytes of the stage have arrived so far. May be read from any thread."""
        return self._staging.num_bytes

    def close(self) -> None:
        """Release the folder, so that another process may have a replica of it."""
        self._lock.release()

    def handle(self, message: Message, blobs: Sequence[Content] = ()) -> Message:
        """Answer one message of a push. An error in the message, or of the disk, is answered with
        ``Refused``."""
        if not self._lock.is_held:
            return Refused("closed", "this replica was closed: make another of its folder")
        try:
            self._settle()
            if self._completion.is_interrupted:
                self._recover()
            if isinstance(message, Instalment):
                return self.take_in(message, blobs)
            if isinstance(message, StageRequest):
                return self.stage(message, blobs)
            if isinstance(message, Supply):
                return self.supply(message, blobs)
            if isinstance(message, Commit):
                return self.commit(message.generation)
            if isinstance(message, Abort):
                return self.abort(message.generation)
        except BadManifest as error:
            self._drop_stage()
            return Refused("bad-manifest", str(error), error.path, self.generation)
        except BadMessage as error:
            self._drop_stage()
            return Refused("damaged", str(error))
        except UnicodeEncodeError as error:
            self._drop_stage()
            return Refused("encoding", _NO_SUCH_NAMES.format(error.encoding), str(error.object))
        except OSError as error:
            fault = self._disk_fault(error)
            if error.errno in FULL and self._make_room(message, blobs):
                is_stage = isinstance(message, StageRequest)
                return self.handle(message, blobs) if is_stage else _NEED_WHOLE
            return fault
        if isinstance(message, Question):
            try:
                return self._recall.answer(message)
            except OSError as error:
                return Refused("disk", error.strerror or str(error), str(error.filename or ""))
        return Refused("unexpected", f"a replica answers no {type(message).__name__}")

    @property
    def is_settled(self) -> bool:
        """Whether the work after the answer to a commit, such as moving replaced files to the
        store, is done."""
        return self._completion.is_settled

    def settle(self) -> None:
        """Do the work that follows the answer to a commit. Call it once the answer is
        sent and no other message waits; a step that fails is tried again with the next message."""
        with contextlib.suppress(OSError):
            self._settle()

    def _settle(self) -> None:
        self._completion.settle()
        if self._is_new:
            self._states.note(self.manifest)
            self._is_new = False

    def _disk_fault(self, error: OSError) -> Refused:
        path = os.fspath(error.filename) if error.filename else str(self.root)
        reason = error.strerror or str(error)
        if not self._state.is_dir():
            path, reason = str(self._state), "it was removed while in use: start it anew"
        elif self._completion.is_interrupted:
            # The commit can only be completed, for which the staged content is needed.
            reason += "; the commit was cut short, and goes on with the next message"
            return Refused("interrupted", reason, path, self.generation)
        if self._completion.is_settled:
            with contextlib.suppress(OSError):  # The error may be in the staging folder.
                self._drop_stage()
        return Refused("disk", reason, path, self.generation)

    def _make_room(self, message: Message, blobs: Sequence[Content]) -> bool:
        """On a full disk, drop all stored contents of earlier states if the new state may fit then;
        return whether they were dropped, so that the message can be tried again."""
        is_staging = isinstance(message, StageRequest | Supply) and self._pending is None
        num_stored = self._store.num_bytes
        is_done = self._completion.is_settled and not self._completion.is_interrupted
        if not is_staging or not num_stored or not is_done:
            return False
        if num_stored + shutil.disk_usage(self.root).free < sum(map(len, blobs)):
            return False
        self._store.trim(0)
        return True

    def past(self) -> Iterator[PastGeneration]:
        """Yield the generations that this replica remembers, the present one first."""
        self.settle()
        return self._recall.past()

    def take_in(self, instalment: Instalment, blobs: Sequence[Content] = ()) -> Message:
        """Stage a part of a first state before the author has scanned the rest of it. Nothing
        visible changes."""
        if not self.generation and self._pending is None:
            self._ensure_folder()
            if self._ahead.generation != instalment.generation:
                self._drop_stage()
            if self._ahead.take(instalment, blobs, self.manifest):
                return Need([])
        return Need(list(dict.fromkeys(row[4] for row in instalment.rows if row[4])))

    def stage(self, stage: StageRequest, blobs: Sequence[Content]) -> Message:
        """Prepare a state beside the folder. Nothing visible changes."""
        state = self._log.state
        if stage.generation <= state.generation:
            reason = f"generation {state.generation} is here already, pushed by {state.author}"
            return Refused("stale", reason, current=state.generation)
        if stage.generation > _MAX_GENERATION:
            return Refused("bad-generation", f"no workspace has come as far as {stage.generation}")
        self._ensure_folder()
        old = self.manifest
        if stage.base and stage.base != old.digest:
            return _NEED_WHOLE
        recent = None
        if stage.ahead:
            completed = self._ahead.complete(stage)
            if completed is None:
                return _NEED_WHOLE
            stage, manifest = completed
        else:
            recent = self._states.find(stage)
            manifest = recent or manifest_of(stage, old)
        if self._pending is not None:
            self._drop_stage()
        if not stage.base:
            self._completion.forget_missing()
            old = self.manifest
        plan = self._plan(old, manifest, stage)
        self._on_disk.check_short(plan, manifest)
        self._pending = Pending(stage, old, manifest, plan, is_complete=recent is None)
        self._staging.begin(self._ahead.rest_of(plan), old)
        self._ahead.forget()
        return self._go_on(self._pending, stage.blobs, blobs)

    def _ensure_folder(self) -> None:
        """Make the replica's folder if it was deleted, and forget all of its entries, so that a
        push brings them again."""
        if not self._on_disk.is_there():
            self.root.mkdir(parents=True)
            self._completion.forget_missing()

    def supply(self, supply: Supply, blobs: Sequence[Content]) -> Message:
        """Take in more contents for the state that is being staged."""
        pending = self._pending
        if pending is None or pending.stage.generation != supply.generation:
            return _NEED_WHOLE
        return self._go_on(pending, supply.blobs, blobs)

    def _plan(self, old: Manifest, new: Manifest, stage: StageRequest) -> SyncPlan:
        supplied = set()
        for blob in stage.blobs:
            supplied.add(blob.digest)
            supplied.update(map(_DIGEST, blob.parts))
        store = self._store
        # An author that sends changes of a known state has searched for moved folders itself.
        moves = decode_pairs(stage.moves) if stage.base else None
        plan = diff(old, new, moves, lambda d: d in supplied or store.has(d))
        return plan if self._can_move(plan) else diff(old, new, ())

    def _can_move(self, plan: SyncPlan) -> bool:
        """Return whether the plan's folder moves are possible. Each folder must have exactly the
        names that the manifest says, must be no mount point, and must be a folder that can be
        renamed.
        """
        if not plan.folders_moved:
            return True
        can_move, manifest = self._folders.can_move, self.manifest
        mounts = mounted_inside(os.fspath(self.root))
        old_paths = [old_path for old_path, _ in plan.folders_moved]
        return all(path not in mounts and can_move(path, manifest) for path in old_paths)

    def _go_on(
        self, pending: Pending, blobs: Sequence[Blob], contents: Sequence[Content]
    ) -> Message:
        for blob, content in zip(blobs, contents, strict=False):
            self._staging.add(blob, content)
        missing = self._staging.gather(pending.plan, pending.new)
        if missing:
            return Need(missing)
        self._on_disk.check_open(pending.plan)
        self._on_disk.check_unmounted(pending.plan)
        self._staging.find_swaps(pending.plan.files)
        pending.make_journal(self._completion.boot)
        return pending.staged(self._source_of)

    def _source_of(self, path: str) -> str:
        """Return the path at which a file's new content is until the commit. That is the file's own
        path if the file has this content already, or will be patched in place.
        """
        ready = self._staging.ready[path]
        return ready.source if ready.source and ready.patch is None else f"{self.root}/{path}"

    def commit(self, generation: int) -> Message:
        """Show the staged state. If the answer is lost, a second call confirms the commit, without
        the names of kept files."""
        if generation == self.generation:
            return Committed(generation, [])
        pending = self._pending
        if pending is None or pending.journal is None or pending.stage.generation != generation:
            return Refused("not-staged", f"generation {generation} was not staged here")
        if not self._can_move(pending.plan):
            pending = self._file_by_file(pending)
        assert pending.journal is not None
        self._log.begin(pending.journal)
        kept = self._completion.carry_out(pending.new, pending.plan)
        self._pending, self._is_new = None, True
        return Committed(generation, [to_wire(name) for name in kept])

    def _file_by_file(self, pending: Pending) -> Pending:
        """Plan and stage the same change without moving whole folders, because another program has
        put a file into one of them since the stage. That file must stay where it is."""
        plan = diff(self.manifest, pending.new, ())
        self._staging.salvage(plan, self.manifest)
        self._staging.gather(plan, pending.new)
        pending.plan = plan
        pending.make_journal(self._completion.boot)
        return pending

    def abort(self, generation: int) -> Message:
        """Drop the staged state."""
        pending = self._pending
        if generation == (self._ahead.generation if pending is None else pending.stage.generation):
            self._drop_stage()
        return Aborted(generation)

    def _recover(self) -> None:
        """Finish an interrupted commit, or forget a stage that was never committed."""
        if self._completion.is_interrupted:
            self._completion.recover()
            self._states.note(self.manifest)
            self._pending = None
        else:
            self._drop_stage()

    def _drop_stage(self) -> None:
        self._pending = None
        self._ahead.forget()
        self._staging.drop()
