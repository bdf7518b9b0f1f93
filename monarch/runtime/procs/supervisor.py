"""Carries out the decisions of the supervision rules in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from monarch.core.supervision import (
    Effect,
    FailActor,
    StopMesh,
    Supervise,
    Supervision,
    UnhandledFailure,
)
from monarch.errors import MeshFailure
from monarch.runtime.links.peer_down import failure_of
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.wire.address import Uid
from monarch.wire.message import ActorFailed, ProcDown


class Supervised(Protocol):
    """The parts of a process that its supervisor uses."""

    def judge(self, actor: Uid, failure: MeshFailure, verdict: Callable[[bool, str], None]) -> None:
        """Call an actor's ``__supervise__``; pass its answer, and its error, to ``verdict``."""
        ...

    def fail(self, actor: Uid, failure: MeshFailure, error: str) -> None:
        """Fail an actor because of something that it owns."""
        ...

    def fault(self, fault: UnhandledFailure) -> None:
        """Report a failure that no owner has handled."""
        ...


class Supervisor:
    """The state machine of ``core.supervision``, driven by this node.

    ``forget`` is called with each mesh whose last member ended with a process.
    """

    def __init__(self, node: Node, process: Supervised, forget: Callable[[Uid], None]) -> None:
        self._process = process
        self._forget = forget
        self._machine = Supervision()
        self._stops: dict[Uid, Callable[[], Promise[Any]]] = {}
        self._lock = threading.Lock()
        node.peer_down.on_deaths.append(self._on_deaths)
        node.on(ActorFailed, self._on_actor_failed)

    def owned(
        self,
        owner: Uid,
        mesh: Uid,
        name: str,
        kind: str,
        procs: Sequence[Uid],
        stop: Callable[[], Promise[Any]],
        member: Callable[[int], str] | None = None,
    ) -> None:
        """Note that ``owner`` has spawned a mesh; ``stop`` ends the mesh if its owner ends."""
        with self._lock:
            self._machine.owned(owner, mesh, name, kind, procs, member)
            self._stops[mesh] = stop

    def stopped(self, mesh: Uid) -> None:
        """Note that the mesh ends on purpose."""
        with self._lock:
            self._machine.stopped(mesh)
            self._stops.pop(mesh, None)

    def members_stopped(self, mesh: Uid, procs: Sequence[Uid]) -> bool:
        """Note that some members of the mesh end on purpose; return whether these were the last."""
        with self._lock:
            is_all = self._machine.members_stopped(mesh, procs)
            if is_all:
                self._stops.pop(mesh, None)
        return is_all

    def has_living(self, mesh: Uid, proc: Uid) -> bool:
        """Return whether a mesh has a member in ``proc`` that has neither failed nor been
        stopped."""
        with self._lock:
            return self._machine.has_living(mesh, proc)

    def lives_again(self, uid: Uid) -> None:
        """Note that a lost host is back at the same address."""
        with self._lock:
            self._machine.lives_again(uid)

    def actor_begins(self, actor: Uid) -> None:
        """Note that an actor is made here. Its uid may have belonged to an actor that has ended."""
        with self._lock:
            self._machine.actor_begins(actor)

    def actor_ended(self, actor: Uid) -> list[Promise[Any]]:
        """End what an actor owns; the promises are set once that has happened."""
        with self._lock:
            effects = self._machine.actor_ended(actor)
        return self._carry_out(effects)

    def _on_deaths(self, downs: Sequence[ProcDown], cause: str) -> None:
        deaths = {down.uid: failure_of(down) for down in downs if not down.expected}
        if deaths:
            with self._lock:
                effects = self._machine.procs_down(deaths, cause)
            self._carry_out(effects)
        with self._lock:
            over = self._machine.forget_dead([down.uid for down in downs])
            for mesh in over:
                self._stops.pop(mesh, None)
        for mesh in over:
            self._forget(mesh)

    def _on_actor_failed(self, failed: ActorFailed) -> None:
        with self._lock:
            effects = self._machine.actor_failed(
                failed.actor, failed.rank, failed.reason, failed.cause
            )
        self._carry_out(effects)

    def _carry_out(self, effects: Sequence[Effect]) -> list[Promise[Any]]:
        ends = []
        for effect in effects:
            if isinstance(effect, Supervise):
                self._ask(effect)
            elif isinstance(effect, FailActor):
                self._process.fail(effect.actor, effect.failure, effect.error)
            elif isinstance(effect, UnhandledFailure):
                self._process.fault(effect)
            elif isinstance(effect, StopMesh):
                stop = self._stops.pop(effect.mesh, None)
                if stop is not None:
                    ends.append(stop())
        return ends

    def _ask(self, effect: Supervise) -> None:
        def verdict(handled: bool, error: str) -> None:
            with self._lock:
                effects = self._machine.supervised(effect.owner, effect.failure, handled, error)
            self._carry_out(effects)

        self._process.judge(effect.owner, effect.failure, verdict)
