"""An owner and its actors: made, ended, failed."""

from __future__ import annotations

import msgspec

from monarch.errors import MeshFailure
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message.header import Message


class Ancestor(msgspec.Struct, array_like=True, frozen=True):
    """An actor that spawned one, or spawned one that did."""

    name: str
    class_name: str
    rank: int
    labels: tuple[str, ...]
    sizes: tuple[int, ...]


class SpawnActor(Message, tag=40):
    """Make an actor. Payload: class and constructor arguments.

    ``ancestors``: who spawned it, from below the client down.
    """

    actor: Uid
    name: str
    class_name: str
    rank: int
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    owner: ProcAddress
    owner_actor: Uid
    is_async: bool
    ancestors: tuple[Ancestor, ...] = ()


class StopActor(Message, tag=41):
    """End an actor after the messages before this one."""

    actor: Uid
    reason: str
    port: int
    sender: Uid


class ActorFailed(Message, tag=42):
    """To the owner: an actor has failed, and nobody was waiting for its answer.

    ``cause`` is the failure of something it owned, where that is why.
    """

    actor: Uid
    rank: int
    name: str
    proc: Uid
    reason: str
    cause: MeshFailure | None = None


class AskOrigin(Message, tag=48):
    """To an owner: which procs was this actor spawned on? Answered by ``Reply``, pickled."""

    actor: Uid
    port: int
    sender: Uid
