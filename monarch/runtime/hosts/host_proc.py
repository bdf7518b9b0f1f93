"""A host agent's record of a proc."""

from __future__ import annotations

import msgspec

from monarch.runtime.hosts.launcher import MakesProcs
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import ProcSpec, SpawnProcs


class HostProc(msgspec.Struct):
    """A host agent's record of a proc.

    ``spawn``, ``spec`` and ``setup`` are the order to make it. ``life`` counts the earlier
    processes with its uid. ``pid`` is 0 until the process is forked; ``started`` is its start time.
    """

    spawn: SpawnProcs
    spec: ProcSpec
    setup: bytes
    launcher: MakesProcs
    life: int = 0
    pid: int = 0
    started: int = 0
    address: ProcAddress | None = None
    stop_reason: str | None = None

    @property
    def uid(self) -> Uid:
        return self.spec.uid

    @property
    def owner(self) -> ProcAddress:
        return self.spawn.owner

    @property
    def label(self) -> str:
        """The proc's mesh and rank, for people."""
        return f"{self.spawn.name} {self.spec.rank}"
