"""Which actor runs here, and for which message."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple

from monarch.wire.address import ProcAddress, Uid

__all__ = ["ActorRecord", "Running", "running"]


class ActorRecord(NamedTuple):
    """An actor: where it stands in its mesh, and who owns it."""

    uid: Uid
    name: str
    class_name: str
    rank: int
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    owner: ProcAddress
    owner_actor: Uid
    creator: str


class Running(NamedTuple):
    """The actor, and the rank that the message in hand was sent to."""

    record: ActorRecord
    instance: object
    rank: int
    labels: tuple[str, ...]
    sizes: tuple[int, ...]


running: ContextVar[Running | None] = ContextVar("monarch_running", default=None)
