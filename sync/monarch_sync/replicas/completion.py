"""Completion: finishes every commit that has begun, also after a crash.

Once the journal is written, a commit can only be completed. An interrupted commit is carried out
again from its start, with the staged files that are still there. Two things can be done after the
answer: store the replaced files, and record the commit. They wait for `settle`; the journal has
what is needed to do them after a crash, too. After a reboot, and if the folder was replaced by
another (a backup, say), every file is read once, and files that are not as we left them no longer
count as ours.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from monarch_sync.content.stamps import digest_of
from monarch_sync.history import History
from monarch_sync.replicas.commit import Committer
from monarch_sync.replicas.on_disk import OnDisk
from monarch_sync.replicas.staging import Staging
from monarch_sync.replicas.state_log import Journal, StateLog
from monarch_sync.replicas.whole_folders import WholeFolders
from monarch_sync.tree.diff import SyncPlan, diff
from monarch_sync.tree.manifest import Manifest, decode_pairs

FULL = (errno.ENOSPC, errno.EDQUOT)


class Completion:
    """Carries out the commits of one replica: the change of the folder, the records, and the
    recovery after an interruption. ``boot_id`` identifies this start of the machine.
    """

    def __init__(
        self,
        on_disk: OnDisk,
        log: StateLog,
        history: History,
        staging: Staging,
        folders: WholeFolders,
        *,
        boot_id: str,
    ) -> None:
        self._on_disk = on_disk
        self._root = on_disk.root
        self._log = log
        self._history = history
        self._staging = staging
        self._store = on_disk.store
        self._folders = folders
        #: A commit that `settle` has to finish, and the state that it was to reach.
        self._unsettled: tuple[Committer, Manifest] | None = None
        #: A commit that the history does not have yet, its old state and its new state.
        self._unnoted: tuple[Journal, Manifest, Manifest] | None = None
        interrupted = log.interrupted
        if interrupted is not None and history.newest < interrupted.generation:
            old = log.state.manifest
            self._unnoted = interrupted, old, interrupted.apply(old)
        #: Differs between starts of this machine, and between different folders of this name.
        self.boot = f"{boot_id} {os.stat(self._root).st_ino}"

    @property
    def is_interrupted(self) -> bool:
        """Whether a commit was interrupted and must be recovered."""
        return self._log.interrupted is not None

    @property
    def is_settled(self) -> bool:
        """Whether the work after the answer to a commit, such as moving replaced files to the
        store, is done."""
        return self._unsettled is None

    def carry_out(self, new: Manifest, plan: SyncPlan, *, is_repeated: bool = False) -> list[str]:
        """Make the folder show the state ``new``; return the new names of files that were changed
        on the host and are kept."""
        journal, old = self._log.interrupted, self._log.state.manifest
        if journal is not None and not is_repeated:
            self._unnoted = journal, old, new
        committer = Committer(
            self._on_disk, self._staging, self._folders, old, is_repeated=is_repeated
        )
        kept = committer.carry_out(plan, new)
        self._log.reach(new.replace(removed=committer.lost) if committer.lost else new)
        self._unsettled = committer, new
        return kept

    def settle(self) -> None:
        """Do the work that follows the answer to a commit. If it fails, call it again."""
        if self._unsettled is None:
            return
        committer, new = self._unsettled
        committer.settle()
        try:
            self._note(new, committer.lost)
        except OSError as error:
            if error.errno not in FULL or not self._store.num_bytes:
                raise
            self._store.trim(0)  # The contents of earlier states are dropped for this record.
            self._note(new, committer.lost)
        self._unsettled = None
        self._staging.drop()
        self._store.trim()
        with contextlib.suppress(OSError):  # Nothing is lost: the log has the whole state.
            self._log.compact()

    def _note(self, planned: Manifest, lost: list[str]) -> None:
        """Record a commit in the history, and after that its completion in the log. If the process
        ends in between, the log shows an incomplete commit, and nothing is lost."""
        if self._unnoted is not None:
            journal, old, new = self._unnoted
            self._history.add(
                generation=journal.generation,
                author=journal.author,
                old=old,
                new=new,
                seconds=journal.seconds,
                moves=journal.known_moves,
                takes_back=journal.takes_back,
            )
            self._unnoted = None
        self._note_lost(planned, lost)
        self._log.end(lost)

    def recover(self) -> None:
        """Finish an interrupted commit, if there is one."""
        journal = self._log.interrupted
        if journal is None:
            return
        old = self._log.state.manifest
        new = journal.apply(old)
        moves = decode_pairs(journal.folder_moves)
        plan = diff(old, new, [move for move in moves if self._folders.is_free(move[0])])
        self._staging.salvage(plan, old)
        self._staging.gather(plan, new)
        self.carry_out(new, plan, is_repeated=True)
        self._staging.return_old()
        self.settle()

    def note_reboot(self) -> None:
        """After a reboot, compare all files with the manifest, and remove from the manifest the
        files with another content. Do so too if another folder has taken the place of the replica's
        folder.
        """
        state = self._log.state
        if state.boot == self.boot or not state.generation:
            return
        files = (entry for entry in state.manifest if entry.is_file)
        damaged = [e.path for e in files if digest_of(f"{self._root}/{e.path}") != e.digest]
        sound = state.manifest.replace(removed=damaged)
        self._log.state = state._replace(manifest=sound, boot=self.boot)
        if self._log.interrupted is None:
            self._note_lost(state.manifest, damaged)
            with contextlib.suppress(OSError):
                self._log.rewrite(self._log.state)

    def forget_missing(self) -> None:
        """Forget the manifest's entries that were deleted on the host, so that the next push brings
        them again."""
        manifest = self._log.state.manifest
        paths = (entry.path for entry in manifest)
        missing = [path for path in paths if not os.path.lexists(f"{self._root}/{path}")]
        if missing:
            self._note_lost(manifest, missing)
            self._log.forget(missing)

    def _note_lost(self, manifest: Manifest, paths: list[str]) -> None:
        entries = [entry for entry in map(manifest.get, paths) if entry is not None]
        # Without this record, the history cannot lead to earlier states any more, and says so.
        with contextlib.suppress(OSError):
            self._history.lost(self._log.state.generation, entries)


def read_boot_id() -> str:
    """Return the kernel's id of this start of the machine; "" if it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
