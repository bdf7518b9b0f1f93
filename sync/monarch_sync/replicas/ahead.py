"""Ahead: the part of a first state that arrives before the author has scanned all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from monarch_sync.content.disk import Content
from monarch_sync.messages import Instalment, StageRequest
from monarch_sync.replicas.on_disk import OnDisk
from monarch_sync.replicas.staging import Staging
from monarch_sync.replicas.states import manifest_of
from monarch_sync.tree.diff import SyncPlan
from monarch_sync.tree.entry import Entry, Row, parent_of
from monarch_sync.tree.manifest import Manifest


class Ahead:
    """The instalments that one replica has received. Their content is staged when it arrives; the
    ``StageRequest`` that follows brings only the rest of the state.

    What is staged is dropped if that request changes or removes any entry of an instalment.
    """

    def __init__(self, on_disk: OnDisk, staging: Staging) -> None:
        self._on_disk = on_disk
        self._staging = staging
        self.forget()

    def forget(self) -> None:
        """Forget the instalments, because their content is gone, or because a stage has taken them
        over.
        """
        #: The generation that the instalments are part of; 0 if there are none.
        self.generation = 0
        #: The entries of the instalments, by path, and the rows that they came in.
        self._entries: dict[str, Entry] = {}
        self._rows: list[Row] = []
        #: Whether the stage has all these entries as they were sent.
        self._is_unchanged = False

    def take(self, instalment: Instalment, blobs: Sequence[Content], old: Manifest) -> bool:
        """Stage an instalment, and return whether it was staged.

        Nothing is staged if an entry was sent before, or if an entry's folder was not. Raises
        ``BadManifest`` for an invalid entry, ``BadMessage`` for damaged content, and ``OSError`` if
        a file cannot be written.
        """
        entries: dict[str, Entry] = {}
        for row in instalment.rows:
            entry = Entry.from_row(row)
            folder = parent_of(entry.path)
            above = entries.get(folder) or self._entries.get(folder)
            if folder and (above is None or not above.is_dir):
                return False
            if entry.path in entries or entry.path in self._entries:
                return False
            entries[entry.path] = entry
        plan = SyncPlan(
            folders=[entry for entry in entries.values() if entry.is_dir],
            files=[entry for entry in entries.values() if entry.is_file],
        )
        self._on_disk.check_short(plan, old)
        self.generation = instalment.generation
        self._entries.update(entries)
        self._rows += instalment.rows
        self._staging.begin(plan, old)
        for blob, content in zip(instalment.blobs, blobs, strict=False):
            self._staging.add(blob, content)
        return True

    def complete(self, stage: StageRequest) -> tuple[StageRequest, Manifest] | None:
        """Return the stage with the entries of the instalments added, and its manifest.

        None if the stage builds on other instalments than those that came here. Raises
        ``BadManifest`` if an entry of the stage is invalid.
        """
        sent = Manifest(self._entries.values())
        if self.generation != stage.generation or sent.digest != stage.ahead:
            return None
        rest = msgspec.structs.replace(stage, base=sent.digest, ahead=b"")
        manifest = manifest_of(rest, sent)
        self._is_unchanged = not stage.removed and len(sent) + len(stage.changed) == len(manifest)
        rows = [*self._rows, *stage.changed] if self._is_unchanged else manifest.rows()
        return msgspec.structs.replace(stage, changed=rows, removed=[], ahead=b""), manifest

    def rest_of(self, plan: SyncPlan) -> SyncPlan:
        """Return the part of a plan that the instalments have not staged. If the stage changed one
        of their entries, drop what is staged and return the whole plan."""
        sent = self._entries
        if sent and not self._is_unchanged:
            self._staging.drop()
            return plan
        files = [entry for entry in plan.files if entry.path not in sent]
        folders = [entry for entry in plan.folders if entry.path not in sent]
        return replace(plan, files=files, folders=folders)
