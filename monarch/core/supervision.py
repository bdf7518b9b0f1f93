"""Supervision: which owner is told about a failure, and what follows from its answer.

The rules:

- The spawner of a mesh owns it: an actor, or the root (the client program itself).
- A failure of a member goes to the owner's ``__supervise__``. Truthy: handled, the owner lives.
  Otherwise the owner has failed too: what it owns is stopped, and its own owner is told.
- A failure that reaches the root goes to the fault hook.
- ``__supervise__`` that raises is a failure of its own, chained to the one it was asked about.
- One cause, one report: procs that die together are one report for each proc mesh that had them;
  the actor meshes that the same owner had on them lose the members without a report of their own.
  To an owner of only actors on them, as few meshes are reported as name every dead proc.
- The root gets one report of a cause, though it may come on two ways: directly, as the owner of a
  proc, and through an actor that did not handle its part of it.
- A rank is reported once. Ends that were asked for are not failures.
- References own nothing: this state machine only gets meshes that were spawned here.

Events are methods; each returns the effects to carry out, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from monarch.errors import MeshFailure

ROOT = "root"


class Supervise(NamedTuple):
    """Call ``__supervise__`` of the actor ``owner`` with a failure; pass the result to
    ``Supervision.supervised``.
    """

    owner: str
    failure: MeshFailure


class FailActor(NamedTuple):
    """The actor ``actor`` has failed: end it, and tell its owner.

    ``failure`` is a failure of something that it owned and did not handle. ``error`` is the error
    that its ``__supervise__`` raised, or "".
    """

    actor: str
    failure: MeshFailure
    error: str = ""


class UnhandledFailure(NamedTuple):
    """A failure that no owner has handled: call the root's fault hook.

    ``keys`` name the members that failed: uids of procs, ``actor mesh[rank]``, or the origin. If
    the same failure is reported in another way, that report has one of these keys, so the failure
    counts once.
    """

    failure: MeshFailure
    keys: frozenset[str] = frozenset()


class StopMesh(NamedTuple):
    """End all members of a mesh, because its owner has ended."""

    mesh: str


Effect = Supervise | FailActor | UnhandledFailure | StopMesh


class _Mesh(msgspec.Struct, dict=True):
    owner: str
    name: str
    kind: str
    procs: Sequence[str]
    member: Callable[[int], str]
    dead: set[int] = msgspec.field(default_factory=set)

    @cached_property
    def _ranks(self) -> dict[str, list[int]]:
        """The ranks of the mesh by proc. The mesh keeps this dict, so that the end of each proc
        need not search all ranks.
        """
        ranks: dict[str, list[int]] = {}
        for rank, proc in enumerate(self.procs):
            ranks.setdefault(proc, []).append(rank)
        return ranks

    def lived_in(self, procs: Collection[str]) -> list[int]:
        """Return the ranks that are, or were, in one of ``procs``, dead or not."""
        return sorted(rank for proc in procs for rank in self._ranks.get(proc, ()))

    def living_in(self, procs: Collection[str]) -> list[int]:
        """Return the ranks in one of ``procs`` that are not known to be dead."""
        return [rank for rank in self.lived_in(procs) if rank not in self.dead]


class Supervision:
    """The ownership tree as seen from one process."""

    def __init__(self) -> None:
        self._meshes: dict[str, _Mesh] = {}
        self._ended: set[str] = set()
        self._faulted: set[str] = set()

    def owned(
        self,
        owner: str,
        mesh: str,
        name: str,
        kind: str,
        procs: Sequence[str],
        member: Callable[[int], str] | None = None,
    ) -> None:
        """Record that ``owner`` (an actor of this process, or ``ROOT``) has spawned a mesh.

        ``kind`` is "proc" or "actor". ``procs`` are the uids of the procs by rank: the members
        themselves, or for actors the procs in which they live. ``member`` returns a rank's name for
        users; None: the mesh's ``name``.
        """
        self._meshes[mesh] = _Mesh(owner, name, kind, procs, member or (lambda rank: name))

    def stopped(self, mesh: str) -> None:
        """Forget a mesh that was ended on purpose; its members no longer count as failures."""
        self._meshes.pop(mesh, None)

    def members_stopped(self, mesh: str, procs: Sequence[str]) -> bool:
        """Record that the members in ``procs`` were ended on purpose; return true if no member is
        left."""
        entry = self._meshes.get(mesh)
        if entry is None:
            return True
        entry.dead.update(entry.living_in(procs))
        if len(entry.dead) == len(entry.procs):
            del self._meshes[mesh]
            return True
        return False

    def forget_dead(self, procs: Collection[str]) -> list[str]:
        """Record that procs have ended and that their failures have been reported.

        Returns the meshes without a living member; no further event can concern them.
        """
        touched = [(uid, mesh) for uid, mesh in self._meshes.items() if mesh.lived_in(procs)]
        for _, mesh in touched:
            mesh.dead.update(mesh.living_in(procs))
        over = [uid for uid, mesh in touched if len(mesh.dead) == len(mesh.procs)]
        for uid in over:
            del self._meshes[uid]
        return over

    def has_living(self, mesh: str, proc: str) -> bool:
        """Return whether a mesh has a member in ``proc`` that has neither failed nor been
        stopped."""
        entry = self._meshes.get(mesh)
        return entry is not None and bool(entry.living_in((proc,)))

    def meshes_of(self, owner: str) -> list[str]:
        return [uid for uid, mesh in self._meshes.items() if mesh.owner == owner]

    def procs_down(self, deaths: Mapping[str, MeshFailure], origin: str = "") -> list[Effect]:
        """Handle the unexpected deaths of processes that have one cause. ``deaths`` has the
        failures by the uid of the process.
        """
        origin = origin or min(deaths, default="")
        hit = [mesh for mesh in self._meshes.values() if mesh.living_in(deaths)]
        owners = dict.fromkeys(mesh.owner for mesh in hit)
        reports = [
            (mesh, self._about(mesh, mesh.living_in(deaths), deaths, origin))
            for owner in owners
            for mesh in _worth_telling([mesh for mesh in hit if mesh.owner == owner], deaths)
        ]
        for mesh in hit:
            mesh.dead.update(mesh.living_in(deaths))
        is_known = origin in self._faulted
        return [
            effect
            for mesh, failure in reports
            if not (is_known and mesh.owner == ROOT)
            for effect in self._tell(mesh, failure, deaths)
        ]

    def actor_failed(
        self, mesh_uid: str, rank: int, reason: str, cause: MeshFailure | None = None
    ) -> list[Effect]:
        """Handle the failure of an actor that no caller was told about.

        ``cause`` is the failure of something that the actor owned, if that made it fail.
        """
        mesh = self._meshes.get(mesh_uid)
        if mesh is None or rank in mesh.dead:
            return []
        mesh.dead.add(rank)
        itself = f"{mesh_uid}[{rank}]"
        origin = cause.origin if cause is not None else itself
        if mesh.owner == ROOT and origin in self._faulted:
            return []
        failure = MeshFailure(
            mesh.name,
            (rank,),
            reason,
            "actor",
            members=(mesh.member(rank),),
            origin=origin,
            cause=cause,
        )
        return self._tell(mesh, failure, (itself,))

    def supervised(
        self, owner: str, failure: MeshFailure, handled: bool, error: str = ""
    ) -> list[Effect]:
        """Handle the result of ``owner``'s ``__supervise__``, or the ``error`` that it raised."""
        if (handled and not error) or owner in self._ended:
            return []
        return [FailActor(owner, failure, error)]

    def lives_again(self, origin: str) -> None:
        """Record that a dead process or actor was restarted: its next death is a new cause."""
        self._faulted.discard(origin)

    def actor_begins(self, actor: str) -> None:
        """Record that an actor is made here; an earlier actor of this uid may have ended."""
        self._ended.discard(actor)

    def actor_ended(self, actor: str) -> list[Effect]:
        """Handle the end of an actor of this process, which has stopped or failed. Return effects
        that end the meshes that it owned.
        """
        self._ended.add(actor)
        owned = self.meshes_of(actor)
        for uid in owned:
            del self._meshes[uid]
        return [StopMesh(uid) for uid in owned]

    def _about(
        self, mesh: _Mesh, ranks: Sequence[int], deaths: Mapping[str, MeshFailure], origin: str
    ) -> MeshFailure:
        """Return the failure to report to the owner of ``mesh``. It covers the deaths of the procs
        of ``ranks``, which have one cause.
        """
        members = tuple(mesh.member(rank) for rank in ranks)
        first = deaths[mesh.procs[ranks[0]]]
        outputs = (deaths[mesh.procs[rank]].last_output for rank in ranks)
        last_output = next(filter(None, outputs), ())
        log_file = next(filter(None, (deaths[mesh.procs[rank]].log_file for rank in ranks)), "")
        reason, lost = first.reason, list[str]()
        if mesh.kind == "actor":
            reason = f"the process it was running on failed: {reason}"
        else:
            procs = {mesh.procs[rank] for rank in ranks}
            lost += [
                other.member(rank)
                for other in self._meshes.values()
                if other.kind == "actor" and other.owner == mesh.owner
                for rank in other.living_in(procs)
            ]
        return MeshFailure(
            mesh.name,
            tuple(ranks),
            reason,
            mesh.kind,
            host=first.host,
            last_output=last_output,
            members=members,
            lost_actors=tuple(lost),
            origin=origin,
            log_file=log_file,
        )

    def _tell(self, mesh: _Mesh, failure: MeshFailure, failed: Iterable[str]) -> list[Effect]:
        if mesh.owner == ROOT:
            self._faulted.add(failure.origin)
            return [UnhandledFailure(failure, frozenset((*failed, failure.origin)))]
        return [] if mesh.owner in self._ended else [Supervise(mesh.owner, failure)]


def _worth_telling(meshes: Sequence[_Mesh], deaths: Collection[str]) -> list[_Mesh]:
    """Return the meshes, of one owner, to report. These are the proc meshes, and an actor mesh only
    if it lost procs that no other reported mesh has lost.

    Proc meshes come first, then the meshes that lost most procs, so that few reports are needed.
    """
    lost = {id(mesh): {mesh.procs[rank] for rank in mesh.living_in(deaths)} for mesh in meshes}
    reported = sorted(meshes, key=lambda mesh: (mesh.kind != "proc", -len(lost[id(mesh)])))
    for mesh in reversed([mesh for mesh in reported if mesh.kind != "proc"]):
        others = (lost[id(other)] for other in reported if other is not mesh)
        if lost[id(mesh)] <= set().union(*others):
            reported = [other for other in reported if other is not mesh]
    return reported
