"""Calls of endpoints, their answers, and what becomes of both on the way."""

from __future__ import annotations

from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message.header import Message

PING = ""
"""The method that every actor has: it answers once ``__init__`` has returned."""


class Call(Message, tag=2, kw_only=True):
    """Run an endpoint. Payload: the arguments. ``port`` 0 means that nobody waits.

    ``generation`` is what the sender runs, counted by the client ``root``: who is behind it must
    not run this. Once the call is taken up, it is the generation that runs it. ``crosses`` is
    one that was being switched to when this was sent, and that leaves some of those behind whom
    it is for.
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


class Reply(Message, tag=3):
    """Into a port. Payload: a value, or an exception where ``failed``.

    ``refused``: the actor is dead, so that a call to it and others need wait for nobody.
    ``generation`` is the one whose code has made this answer.
    """

    port: int
    rank: int
    sender: Uid
    failed: bool = False
    refused: bool = False
    generation: int = 0


class Returned(Message, tag=10):
    """To the sender of a message that nobody waits for: it could not be delivered."""

    actor: Uid
    target: str
    method: str
    reason: str


class PortMark(Message, tag=60):
    """Into a channel: reply to port ``answer_port`` once what came before it is taken."""

    port: int
    answer_port: int
    sender: Uid
