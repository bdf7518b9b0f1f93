"""Carries out what the supervision rules decide, in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from monarch.core.supervision import (
    Effect,
    FailActor,
    Fault,
    StopMesh,
    Supervise,
    Supervision,
)
from monarch.errors import MeshFailure
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.wire.address import Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import ActorFailed, ProcDown

__all__ = ["Supervised", "Supervisor"]


class Supervised(Protocol):
    """What the supervisor needs of the process it works in."""

    def judge(self, actor: Uid, failure: MeshFailure, verdict: Callable[[bool], None]) -> None:
        """Ask an actor's ``__supervise__``."""
        ...

    def fail(self, actor: Uid, failure: MeshFailure) -> None:
        """An actor fails because of something that it owns."""
        ...

    def fault(self, failure: MeshFailure) -> None:
        """Nobody handled a failure, and it has reached the top."""
        ...


class Supervisor:
    """The state machine of ``core.supervision``, fed by this node and acting through it."""

    def __init__(self, node: Node, process: Supervised) -> None:
        self._process = process
        self._machine = Supervision()
        self._stops: dict[Uid, Callable[[], Promise[Any]]] = {}
        self._lock = threading.Lock()
        node.on_peer_down.append(self._on_peer_down)
        node.handle(ActorFailed, self._on_actor_failed)

    def owned(
        self,
        owner: Uid,
        mesh: Uid,
        name: str,
        kind: str,
        procs: Sequence[Uid],
        stop: Callable[[], Promise[Any]],
    ) -> None:
        """``owner`` has spawned a mesh; ``stop`` ends it, should its owner end."""
        with self._lock:
            self._machine.owned(owner, mesh, name, kind, procs)
            self._stops[mesh] = stop

    def stopped(self, mesh: Uid) -> None:
        """The mesh ends on purpose."""
        with self._lock:
            self._machine.stopped(mesh)
            self._stops.pop(mesh, None)

    def members_stopped(self, mesh: Uid, procs: Sequence[Uid]) -> None:
        """Some members of the mesh end on purpose; the others are watched on."""
        with self._lock:
            if self._machine.members_stopped(mesh, procs):
                self._stops.pop(mesh, None)

    def actor_ended(self, actor: Uid) -> list[Promise[Any]]:
        """End what an actor owns; the promises are set once that has happened."""
        with self._lock:
            effects = self._machine.actor_ended(actor)
        return self._carry_out(effects)

    def _on_peer_down(self, uid: Uid, down: ProcDown) -> None:
        if down.expected:
            return
        failure = MeshFailure(uid, (), down.reason, "proc", down.host, tuple(down.last_output))
        with self._lock:
            effects = self._machine.proc_down(uid, failure)
        self._carry_out(effects)

    def _on_actor_failed(self, envelope: Envelope) -> None:
        failed = envelope.message
        assert isinstance(failed, ActorFailed)
        with self._lock:
            effects = self._machine.actor_failed(failed.actor, failed.rank, failed.reason)
        self._carry_out(effects)

    def _carry_out(self, effects: Sequence[Effect]) -> list[Promise[Any]]:
        ends = []
        for effect in effects:
            if isinstance(effect, Supervise):
                self._ask(effect)
            elif isinstance(effect, FailActor):
                self._process.fail(effect.actor, effect.failure)
            elif isinstance(effect, Fault):
                self._process.fault(effect.failure)
            elif isinstance(effect, StopMesh):
                stop = self._stops.pop(effect.mesh, None)
                if stop is not None:
                    ends.append(stop())
        return ends

    def _ask(self, effect: Supervise) -> None:
        def verdict(handled: bool) -> None:
            with self._lock:
                effects = self._machine.supervised(effect.owner, effect.failure, handled)
            self._carry_out(effects)

        self._process.judge(effect.owner, effect.failure, verdict)
