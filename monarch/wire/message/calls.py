"""Actors, calls of their endpoints, answers, the search for deadlocks (by edge chasing), and
requests to the owners of memory."""

from __future__ import annotations

from typing import Any

import msgspec

from monarch.errors import MeshFailure
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message.header import Body, Message, Request

PING = ""
"""The method that every actor has: it answers once ``__init__`` has returned."""


class Call(Message, tag=2, kw_only=True):
    """Run an endpoint. Payload: the arguments."""

    actor: Uid
    method: str
    #: The receiver's rank among the receivers, and their dimensions.
    rank: int
    labels: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    #: The process that sends it, and the actor in it.
    sender: Uid
    sender_actor: Uid = ""
    #: The port for the answer, 0 if none is expected, and its process if that is not the sender.
    port: int = 0
    port_proc: ProcAddress | None = None
    #: Whether the endpoint gets the port as an argument, and answers itself.
    explicit_response_port: bool = False
    #: The sender's generation: a process with an older one must not run the call. Once the call has
    #: begun, the generation that runs it.
    generation: int = 0
    #: The client that counts the generations.
    root: Uid = ""
    #: A generation to which a switch was under way when the call was sent, and which leaves some of
    #: the receivers behind; 0 for none.
    crosses: int = 0
    #: The caller's span, in the form of W3C's ``traceparent``, if it is sampled.
    trace: str = ""
    #: When it arrived, in nanoseconds of the receiver's clock; set by the receiver.
    arrived: int = 0


class Reply(Message, tag=3):
    """An answer to a port. Payload: a value, or an exception if ``failed``.

    ``refused``: the actor is dead, so that other calls to it need not wait either. ``generation``
    is the generation of the code that made this answer.
    """

    port: int
    rank: int
    sender: Uid
    failed: bool = False
    refused: bool = False
    generation: int = 0


class Returned(Message, tag=10):
    """To the sender of a message that expects no answer: the message could not be delivered."""

    actor: Uid
    target: str
    method: str
    reason: str


class PortMark(Message, tag=60):
    """To a channel: reply to port ``answer_port`` once all earlier messages have been taken."""

    port: int
    answer_port: int
    sender: Uid


class Ancestor(msgspec.Struct, array_like=True, frozen=True):
    """One of the owners above an actor: the actor that spawned it, or an owner above that actor."""

    name: str
    class_name: str
    rank: int
    labels: tuple[str, ...]
    sizes: tuple[int, ...]


class SpawnActor(Message, tag=40, kw_only=True):
    """Make an actor. Payload: class and constructor arguments.

    ``ancestors``: its owners, beginning with the owner that the client spawned.
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
    """End an actor after the messages before this one. What still runs after ``seconds`` is
    cancelled if possible. 0 seconds means no limit."""

    actor: Uid
    reason: str
    seconds: float = 0.0


class ActorFailed(Message, tag=42):
    """To the owner: an actor has failed, and no caller waits for its answer.

    ``cause`` is the failure of something that the actor owned, if that made it fail.
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
    """An actor that waits, in ``endpoint``, for the next actor's answer to a call of ``asks``.

    ``number`` identifies this one wait: the actor's next wait has another number.
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
    """The answer to ``AskWait``: the wait of the actor. Its fields are as in ``Waiter``."""

    number: int
    name: str
    rank: int
    endpoint: str


class AskWait(Request[AnswerWaits | None], tag=84):
    """To the process of an actor that a caller waits for, in a call of ``method``: does the actor
    itself wait, so that it cannot answer meanwhile?"""

    actor: Uid
    method: str


class Chase(Message, tag=85):
    """To the process of the last actor of ``path``, in which each waits for the next: continue from
    there.

    ``attempt`` counts how often the first actor's present wait has been followed.
    """

    path: tuple[Waiter, ...]
    attempt: int


class RingFound(Message, tag=86):
    """To a client: each of these actors waits for the next, and the last for the first."""

    path: tuple[Waiter, ...]


class AskMemory(Request[Body], tag=90):
    """To the process that has registered memory for ``monarch.rdma``: a request for it.

    ``what`` names the request, as ``stream`` or ``drop``; ``about`` has its arguments. It is sent
    over the job's own connections, which strangers cannot use.
    """

    what: str
    about: dict[str, Any]
