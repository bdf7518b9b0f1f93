"""Who am I: the running actor, and the rank that its message was sent to."""

from __future__ import annotations

from typing import NamedTuple

from monarch.actor.host_mesh import this_proc
from monarch.actor.proc_mesh import ProcMesh
from monarch.core.supervision import ROOT
from monarch.mesh import Extent, Point
from monarch.runtime import process
from monarch.runtime.context import running
from monarch.wire.address import ActorAddress

__all__ = ["Context", "Instance", "context", "current_actor_name", "current_rank", "current_size"]


class Instance:
    """An actor as it sees itself. ``rank`` is its place in the mesh that it was spawned in."""

    def __init__(self, name: str, class_name: str, rank: Point, creator: str, actor: str) -> None:
        self.name = name
        self.class_name = class_name
        self.rank = rank
        self.creator = creator
        self.actor_id = ActorAddress(process.current().node.address, actor)

    @property
    def proc(self) -> ProcMesh:
        return this_proc()

    @property
    def proc_id(self) -> str:
        return self.actor_id.proc.uid

    def __repr__(self) -> str:
        if self.actor_id.actor == ROOT:
            return "<root>"
        return f"{self.creator}.<{self.class_name} {self.name}{self.rank}>"


class Context(NamedTuple):
    """``message_rank`` is the rank within the mesh or slice that the message was sent to."""

    actor_instance: Instance
    message_rank: Point

    @property
    def generation(self) -> int:
        """The generation of the workspace whose code this process runs; 0 before the first."""
        return process.current().generation


def context() -> Context:
    """Of the running actor; outside of actors, of the client itself."""
    now = running.get()
    if now is None:
        nowhere = Point(0, Extent([], []))
        return Context(Instance("client", "client", nowhere, "", ROOT), nowhere)
    record = now.record
    spawned_at = Point(record.rank, Extent(record.labels, record.sizes))
    instance = Instance(record.name, record.class_name, spawned_at, record.creator, record.uid)
    return Context(instance, Point(now.rank, Extent(now.labels, now.sizes)))


def current_rank() -> Point:
    """The rank within the mesh or slice that the message in hand was sent to."""
    return context().message_rank


def current_size() -> dict[str, int]:
    """The sizes of the mesh or slice that the message in hand was sent to."""
    return dict(context().message_rank.extent)


def current_actor_name() -> str:
    """A name of the running actor that tells it from all others."""
    instance = context().actor_instance
    return f"{instance.proc_id}.{instance.name}[{instance.rank.rank}]"
