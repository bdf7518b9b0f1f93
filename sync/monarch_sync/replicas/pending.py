"""Pending: a state that a replica prepares beside the state that it shows, until the commit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from monarch_sync.messages import Staged, StageRequest
from monarch_sync.replicas.state_log import Journal
from monarch_sync.tree.diff import SyncPlan
from monarch_sync.tree.entry import to_wire
from monarch_sync.tree.manifest import Manifest, encode_pairs


@dataclass
class Pending:
    """A staged change from the state ``old``, which the folder shows, to the state ``new``.

    ``is_complete``: the ``StageRequest`` lists every step of the change, so that the journal can
    copy its lists. ``journal``, which the commit writes to the log, is None until all content is
    there.
    """

    stage: StageRequest
    old: Manifest
    new: Manifest
    plan: SyncPlan
    is_complete: bool
    journal: Journal | None = None

    def make_journal(self, boot: str) -> None:
        """Make the journal of this commit. ``boot`` identifies the replica's folder, and the start
        of the machine."""
        stage, old, new = self.stage, self.old, self.new
        if self.is_complete and (stage.base or not len(old)):
            journal = Journal(
                stage.generation, stage.author, stage.changed, stage.removed, moves=stage.moves
            )
        else:
            journal = Journal.of(stage.generation, stage.author, old, new)
        journal.boot = boot
        journal.seconds = time.time()
        journal.takes_back = stage.takes_back
        if self.plan.folders_moved:
            journal.folder_moves = encode_pairs(self.plan.folders_moved)
        self.journal = journal

    def staged(self, source_of: Callable[[str], str]) -> Staged:
        """Return the answer to the author. ``source_of`` gives the path of a file's new content."""
        plan, new = self.plan, self.new
        files = [(to_wire(entry.path), to_wire(source_of(entry.path))) for entry in plan.files]
        deleted = [e.path for e in plan.removes if e.is_file and new.get(e.path) is None]
        files += [(to_wire(path), b"") for path in deleted]
        num_written = len(plan.files) - len(plan.moved)
        num_inside = sum(new.folder(new_path).num_files for _, new_path in plan.folders_moved)
        num_moved = len(plan.moved) + num_inside
        num_links, num_modes, num_folders = self._beside_files()
        return Staged(
            generation=self.stage.generation,
            files=files,
            num_written=num_written,
            num_moved=num_moved,
            num_deleted=len(deleted) + num_inside,
            num_unchanged=new.num_files - num_written - num_moved,
            moves=encode_pairs(plan.folders_moved),
            num_links=num_links,
            num_modes=num_modes,
            num_folders=num_folders,
        )

    def _beside_files(self) -> tuple[int, int, int]:
        """Return the numbers of links, of modes and of empty folders that change. A folder with
        content does not count, as its files do."""
        plan, old, new = self.plan, self.old, self.new
        num_links, num_folders = len(plan.links), 0
        for entry in plan.folders:
            num_folders += not new.folder(entry.path).num_entries
        for entry in plan.removes:
            if not entry.is_file and entry.path not in new:
                num_links += entry.is_link
                num_folders += entry.is_dir and not old.folder(entry.path).num_entries
        return num_links, len(plan.modes), num_folders
