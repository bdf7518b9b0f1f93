"""Actors that wait for each other: who waits for whom is asked along the calls."""

from __future__ import annotations

import msgspec

from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message.header import Message


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


class AskWait(Message, tag=84):
    """To the process of an actor that somebody waits for, in a call of ``method``: does it wait
    itself, so that it answers nobody meanwhile?

    Answered by ``Answer`` with the fields of a ``Waiter``, or with nothing.
    """

    actor: Uid
    method: str
    port: int
    sender: Uid


class Chase(Message, tag=85):
    """To the process of the last of ``path``: each of them waits for the next; go on from there.

    ``attempt`` counts how often the first of them has been followed, in its one wait.
    """

    path: tuple[Waiter, ...]
    attempt: int


class RingFound(Message, tag=86):
    """To a client: each of these waits for the next, and the last for the first."""

    path: tuple[Waiter, ...]
