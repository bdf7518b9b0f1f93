"""Which actor runs here, and for which message."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import NamedTuple

from monarch.mesh import Extent, Point
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import Ancestor


class ActorRecord(NamedTuple):
    """An actor: its place in its mesh, and its owner."""

    uid: Uid
    name: str
    class_name: str
    rank: int
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    owner: ProcAddress
    owner_actor: Uid
    ancestors: tuple[Ancestor, ...] = ()

    @property
    def path(self) -> tuple[Ancestor, ...]:
        """Return the ancestors of this actor, and then the actor itself."""
        return (*self.ancestors, self.as_ancestor())

    @property
    def title(self) -> str:
        """The name of this actor in words, different from all others of the program."""
        return qualified_name(self.path)

    def as_ancestor(self) -> Ancestor:
        return Ancestor(self.name, self.class_name, self.rank, self.labels, self.sizes)


def qualified_name(path: Sequence[Ancestor]) -> str:
    """Return the path from the client to an actor: ``<root>.<module.Class name{'gpus': 0/2}>``."""
    names = ["<root>"]
    for actor in path:
        rank = str(Point(actor.rank, Extent(actor.labels, actor.sizes))) if actor.labels else ""
        names.append(f"<{actor.class_name} {actor.name}{rank}>")
    return ".".join(names)


class Running(NamedTuple):
    """The running actor, and the rank that the current message was sent to."""

    record: ActorRecord
    instance: object
    rank: int
    labels: tuple[str, ...]
    sizes: tuple[int, ...]


running: ContextVar[Running | None] = ContextVar("monarch_running", default=None)


def sending_actor() -> Uid:
    """Return the uid of the actor that runs here; "" outside of actors."""
    current = running.get()
    return "" if current is None or current.instance is None else current.record.uid
