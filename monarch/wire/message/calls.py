"""Actors, calls of their endpoints, answers, the search for deadlocks (by edge chasing), and what
is asked of the owner of memory."""

from __future__ import annotations

from typing import Any

import msgspec

from monarch.errors import MeshFailure
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message.header import Body, Message, Request

PING = ""
"""The method that every actor has: it answers once ``__init__`` has returned."""


class Call(Message, tag=2, kw_only=True):
    """Run an endpoint. Payload: the arguments. ``port`` 0 means that no answer is waited for.

    ``generation`` is what the sender runs, counted by the client ``root``: a process that is behind
    it must not run this. Once the call is taken up, it is the generation that runs it. ``crosses``
    is one that was being switched to when this was sent, and that leaves some of the receivers
    behind. ``trace`` is the caller's span, as W3C's ``traceparent`` has it, where one is sampled.
    ``arrived`` is for the receiver to fill in: nanoseconds of its clock.
    """

    actor: Uid
    method: str
    rank: int
    labels: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    sender: Uid
    sender_actor: Uid = ""
    port: int = 0
    port_proc: ProcAddress | None = None
    explicit_response_port: bool = False
    generation: int = 0
    root: Uid = ""
    crosses: int = 0
    trace: str = ""
    arrived: int = 0


class Reply(Message, tag=3):
    """Into a port. Payload: a value, or an exception where ``failed``.

    ``refused``: the actor is dead, so that a call to it and others need not wait for it.
    ``generation`` is the one whose code has made this answer.
    """

    port: int
    rank: int
    sender: Uid
    failed: bool = False
    refused: bool = False
    generation: int = 0


class Returned(Message, tag=10):
    """To the sender of a message without an answer: it could not be delivered."""

    actor: Uid
    target: str
    method: str
    reason: str


class PortMark(Message, tag=60):
    """Into a channel: reply to port ``answer_port`` once what came before it is taken."""

    port: int
    answer_port: int
    sender: Uid


class Ancestor(msgspec.Struct, array_like=True, frozen=True):
    """An actor that spawned one, or spawned one that did."""

    name: str
    class_name: str
    rank: int
    labels: tuple[str, ...]
    sizes: tuple[int, ...]


class SpawnActor(Message, tag=40, kw_only=True):
    """Make an actor. Payload: class and constructor arguments.

    ``ancestors``: its owners, from below the client down.
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


class StopActor(Request[None], tag=41):
    """End an actor after the messages before this one; what still runs after ``seconds`` is cut
    off where it can be. 0 seconds are no limit."""

    actor: Uid
    reason: str
    seconds: float = 0.0


class ActorFailed(Message, tag=42):
    """To the owner: an actor has failed, with no caller waiting for its answer.

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


class Waiter(msgspec.Struct, array_like=True, frozen=True):
    """An actor that waits, in ``endpoint``, for the answer to a call of ``asks`` of the next.

    ``number`` is that of this one wait: the actor's next has another.
    """

    proc: ProcAddress
    actor: Uid
    number: int
    name: str
    rank: int
    endpoint: str
    asks: str = ""

    @property
    def key(self) -> tuple[Uid, Uid, int]:
        return self.proc.uid, self.actor, self.number


class AnswerWaits(msgspec.Struct):
    """The wait that an answer waits for, as ``Waiter`` has it."""

    number: int
    name: str
    rank: int
    endpoint: str


class AskWait(Request[AnswerWaits | None], tag=84):
    """To the process of an actor that a caller waits for, in a call of ``method``: does the actor
    wait itself, so that it cannot answer meanwhile?
    """

    actor: Uid
    method: str


class Chase(Message, tag=85):
    """To the process of the last of ``path``: each of them waits for the next; go on from there.

    ``attempt`` counts how often the first of them has been followed, in its one wait.
    """

    path: tuple[Waiter, ...]
    attempt: int


class RingFound(Message, tag=86):
    """To a client: each of these waits for the next, and the last for the first."""

    path: tuple[Waiter, ...]


class AskMemory(Request[Body], tag=90):
    """To the process that has registered memory: ``what`` must be done, as ``about`` says.

    It comes over the job's own connections, which strangers cannot use.
    """

    what: str
    about: dict[str, Any]
