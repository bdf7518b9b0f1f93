"""Who is told about a failure, and what follows from the answer.

The rules:

- Whoever spawned a mesh owns it: an actor, or the root (the client program itself).
- A failure of a member goes to the owner's ``__supervise__``. Truthy: handled, the owner lives.
  Otherwise the owner has failed too: what it owns is stopped, and its own owner is told.
- A failure that reaches the root goes to the fault hook.
- One cause, one report: a proc that dies is reported for its proc mesh; the actor meshes that
  the same owner had on it lose the member without a second report. Who owns only actors on it
  is told once, of one of them.
- A rank is reported once. Ends that somebody asked for are not failures.
- References own nothing: this machine only hears of meshes that were spawned here.

Events are methods; each returns the effects to carry out, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from monarch.errors import MeshFailure

__all__ = [
    "ROOT",
    "Effect",
    "FailActor",
    "Fault",
    "StopMesh",
    "Supervise",
    "Supervision",
]

ROOT = "root"


class Supervise(NamedTuple):
    """Ask the actor ``owner`` what it makes of a failure; answer with ``supervised``."""

    owner: str
    failure: MeshFailure


class FailActor(NamedTuple):
    """The actor ``actor`` has failed: end it, and tell its owner."""

    actor: str
    failure: MeshFailure


class Fault(NamedTuple):
    """Nobody handled it: the root's fault hook is next."""

    failure: MeshFailure


class StopMesh(NamedTuple):
    """End all members of a mesh, because its owner has ended."""

    mesh: str


Effect = Supervise | FailActor | Fault | StopMesh


@dataclass
class _Mesh:
    owner: str
    name: str
    kind: str
    procs: Sequence[str]
    dead: set[int] = field(default_factory=set)


class Supervision:
    """The ownership tree as seen from one process."""

    def __init__(self) -> None:
        self._meshes: dict[str, _Mesh] = {}
        self._ended: set[str] = set()

    def owned(self, owner: str, mesh: str, name: str, kind: str, procs: Sequence[str]) -> None:
        """``owner`` (an actor here, or ``ROOT``) has spawned a mesh.

        ``kind`` is "proc" or "actor"; ``procs`` are the uids of the procs, rank by rank, that
        are its members or that its members live in.
        """
        self._meshes[mesh] = _Mesh(owner, name, kind, procs)

    def stopped(self, mesh: str) -> None:
        """A mesh was ended on purpose; nothing of it is a failure any more."""
        self._meshes.pop(mesh, None)

    def members_stopped(self, mesh: str, procs: Sequence[str]) -> bool:
        """Those members that live in ``procs`` were ended on purpose; true if none are left."""
        known = self._meshes.get(mesh)
        if known is None:
            return True
        self._bury(known, [rank for rank, proc in enumerate(known.procs) if proc in procs])
        if len(known.dead) == len(known.procs):
            del self._meshes[mesh]
            return True
        return False

    def meshes_of(self, owner: str) -> list[str]:
        return [uid for uid, mesh in self._meshes.items() if mesh.owner == owner]

    def proc_down(self, uid: str, failure: MeshFailure) -> list[Effect]:
        """A process has died without having been asked to."""
        hit = [mesh for mesh in self._meshes.values() if uid in mesh.procs]
        told: set[str] = set()
        effects: list[Effect] = []
        for mesh in sorted(hit, key=lambda mesh: mesh.kind != "proc"):
            fresh = self._bury(mesh, [r for r, proc in enumerate(mesh.procs) if proc == uid])
            if fresh and mesh.owner not in told:
                told.add(mesh.owner)
                effects += self._tell(mesh, _about(mesh, fresh, failure))
        return effects

    def actor_failed(self, mesh_uid: str, rank: int, reason: str) -> list[Effect]:
        """A member of an actor mesh has failed, and no caller could be told."""
        mesh = self._meshes.get(mesh_uid)
        if mesh is None or not self._bury(mesh, [rank]):
            return []
        return self._tell(mesh, MeshFailure(mesh.name, (rank,), reason, "actor"))

    def supervised(self, owner: str, failure: MeshFailure, handled: bool) -> list[Effect]:
        """``__supervise__`` of ``owner`` has returned, or raised (then not handled)."""
        if handled or owner in self._ended:
            return []
        return [FailActor(owner, failure)]

    def actor_ended(self, actor: str) -> list[Effect]:
        """An actor here stopped or failed: what it owns ends with it."""
        self._ended.add(actor)
        owned = self.meshes_of(actor)
        for uid in owned:
            del self._meshes[uid]
        return [StopMesh(uid) for uid in owned]

    def _bury(self, mesh: _Mesh, ranks: list[int]) -> list[int]:
        fresh = [rank for rank in ranks if rank not in mesh.dead]
        mesh.dead.update(fresh)
        return fresh

    def _tell(self, mesh: _Mesh, failure: MeshFailure) -> list[Effect]:
        if mesh.owner == ROOT:
            return [Fault(failure)]
        return [] if mesh.owner in self._ended else [Supervise(mesh.owner, failure)]


def _about(mesh: _Mesh, ranks: list[int], failure: MeshFailure) -> MeshFailure:
    """The same cause, told about this mesh."""
    reason = failure.reason if mesh.kind == "proc" else f"its proc died: {failure.reason}"
    return MeshFailure(
        mesh.name, tuple(ranks), reason, mesh.kind, failure.host, failure.last_output
    )
