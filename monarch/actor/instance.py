"""`Instance`: the running actor, for its own code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monarch.actor.host_mesh import this_proc
from monarch.actor.ids import ActorAddr
from monarch.actor.proc_mesh import ProcMesh
from monarch.actor.replies import OneSink, resolve_one
from monarch.core.supervision import ROOT
from monarch.mesh import Extent, Point
from monarch.runtime import process
from monarch.runtime.context import ActorRecord, qualified_name
from monarch.wire.message import Ancestor, AskOrigin

_NOWHERE = Point(0, Extent([], []))


class Creator:
    """The creator of an actor: another actor, or the client, whose name is "root"."""

    def __init__(self, path: Sequence[Ancestor]) -> None:
        self._path = tuple(path)
        last = self._path[-1] if self._path else None
        self.name = last.name if last else "root"
        self.class_name = last.class_name if last else None
        self.rank = Point(last.rank, Extent(last.labels, last.sizes)) if last else _NOWHERE

    @property
    def creator(self) -> Creator | None:
        return Creator(self._path[:-1]) if self._path else None

    def __reduce__(self) -> tuple[Any, ...]:
        return Creator, (self._path,)

    def __repr__(self) -> str:
        return qualified_name(self._path)


class Instance:
    """An actor, or the client. ``rank`` is its place in the mesh that it was spawned in."""

    rank: Point
    name: str
    #: The class; ``None`` for the client.
    class_name: str | None
    #: The creator; ``None`` for the client.
    creator: Creator | None
    #: Its address.
    actor_id: ActorAddr
    #: Libraries for Monarch keep the meshes here that it has spawned; nothing reads it.
    _children: Any = None

    def __init__(self, record: ActorRecord | None) -> None:
        node = process.current().node
        #: The facts of the actor; ``None`` for the client.
        self._record = record
        addr = node.address.urls[0] if node.address.urls else ""
        if record is None:
            self._uid = ROOT
            # Its creators, and itself.
            self._path: tuple[Ancestor, ...] = ()
            self.rank, self.name, self.class_name, self.creator = _NOWHERE, "root", None, None
            self.actor_id = ActorAddr(addr, node.uid, "client", ROOT)
            return
        self._uid = record.uid
        self._path = record.path
        self.rank = Point(record.rank, Extent(record.labels, record.sizes))
        self.name = record.name
        self.class_name = record.class_name
        self.creator = Creator(record.ancestors)
        self.actor_id = ActorAddr(addr, node.uid, record.name, record.uid)

    @property
    def proc(self) -> ProcMesh:
        """Return the process of this actor alone, as a mesh without dimensions."""
        return this_proc()

    @property
    def proc_mesh(self) -> ProcMesh:
        """Ask the actor's owner for the procs that its mesh was spawned on, and return them."""
        if self._record is None:
            return this_proc()
        node = process.current().node
        owner = self._record.owner
        sink = OneSink(owner.uid)
        port = node.open_port(sink, [owner.uid])
        node.send(owner, AskOrigin(self._uid, port, node.uid))
        sink.promise.wait()
        procs = resolve_one(self, "proc_mesh")(sink.promise.value)
        if not isinstance(procs, ProcMesh):
            raise RuntimeError(f"the owner of {self.name} no longer knows on which procs")
        return procs

    @property
    def proc_id(self) -> str:
        """Return the actor's process and where it listens, as ``name@address``."""
        return self.actor_id.proc_id

    def stop(self, reason: str | None = None) -> None:
        """End this actor and everything it owns, after the messages that it has received so far.

        This is no failure: its owner is not notified.
        """
        self._end(reason or "it stopped itself", failed=False)

    def kill(self, reason: str | None = None) -> None:
        """Fail this actor when its current endpoint returns; its owner is notified."""
        self._end(f"it killed itself: {reason or 'no reason provided'}", failed=True)

    def abort(self, reason: str | None = None) -> None:
        """Fail this actor when its current endpoint returns; its owner is notified."""
        self._end(f"it aborted: {reason or 'no reason provided'}", failed=True)

    def _end(self, reason: str, *, failed: bool) -> None:
        if self._uid == ROOT:
            raise RuntimeError("this is the client, not an actor: use shutdown_context() to end it")
        process.current().end_actor(self._uid, reason, failed=failed)

    def __repr__(self) -> str:
        return qualified_name(self._path)
