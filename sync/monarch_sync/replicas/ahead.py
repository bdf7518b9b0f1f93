"""Ahead: what came of a first state before the author had seen all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from monarch_sync.diff import Plan
from monarch_sync.disk import Content
from monarch_sync.entry import Entry, parent_of
from monarch_sync.manifest import Manifest
from monarch_sync.messages import Instalment, Stage
from monarch_sync.replicas.ground import Ground
from monarch_sync.replicas.staging import Staging

__all__ = ["Ahead"]


class Ahead:
    """Of one replica. It is staged as the plan of the stage would have it, so that of this only the
    rest is left to do; unless something is not as it was announced, which makes it worthless."""

    def __init__(self, ground: Ground, staging: Staging) -> None:
        self._ground = ground
        self._staging = staging
        self.generation = 0
        self._entries: dict[str, Entry] = {}

    def forget(self) -> None:
        """What came is not there any more, or has become part of a stage."""
        self.generation = 0
        self._entries = {}

    def take(self, instalment: Instalment, blobs: Sequence[Content], old: Manifest) -> bool:
        """Stage what has come; False, and nothing is, where what it lies in did not come before it.
        Raises ``BadManifest``, ``BadMessage`` and ``OSError``."""
        told: dict[str, Entry] = {}
        for entry in map(Entry.from_row, instalment.rows):
            folder = parent_of(entry.path)
            above = told.get(folder) or self._entries.get(folder)
            if folder and (above is None or not above.is_dir):
                return False
            if entry.path not in self._entries:
                told.setdefault(entry.path, entry)
        plan = Plan(
            folders=[entry for entry in told.values() if entry.is_dir],
            files=[entry for entry in told.values() if entry.is_file],
        )
        self._ground.check_short(plan, old)
        self.generation = instalment.generation
        self._entries.update(told)
        self._staging.begin(plan, old)
        for blob, content in zip(instalment.blobs, blobs, strict=False):
            self._staging.add(blob, content)
        return True

    def rest_of(self, plan: Plan, stage: Stage, new: Manifest) -> Plan:
        """What there is left to begin of a plan; all of it, where what came does not fit."""
        entries = self._entries
        if not entries:
            return plan
        is_the_same = self.generation == stage.generation and not stage.base
        if not is_the_same or any(new.get(path) != entry for path, entry in entries.items()):
            self._staging.drop()
            return plan
        return replace(
            plan,
            files=[entry for entry in plan.files if entry.path not in entries],
            folders=[entry for entry in plan.folders if entry.path not in entries],
        )
