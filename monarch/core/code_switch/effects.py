"""The effects of a participant's events, as data for the driver to carry out. See
``participant``."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from monarch.wire.message import Order


class Work(Enum):
    """A participant's own work. If it takes time, the driver reports its end by ``did``."""

    PREPARE = "prepare"
    RAISE_FENCE = "raise the fence"
    CLOSE_GATE = "let nobody spawn"
    LIFT_FENCE = "lift the fence"
    HALT = "halt"
    CATCH_UP = "prepare what was imported since"
    RESUME = "resume"
    PATCH = "patch"
    REVERT = "revert"
    END = "let all go on, and spawn"
    GO = "go"


class Reason(Enum):
    """A reason why this process has not carried out an order. The procs give reasons of their
    own."""

    NEW_PROC = "a new proc is not up yet"
    ACTORS = "not all actors have come to the fence"
    PROCS = "not all procs have come to the fence"
    NOT_PASSED = "not all have come to a fence that was given up"
    BUSY = "an actor cannot be halted"
    GIVES_WAY = "is to give way to a new proc"
    SILENT = "has not answered"
    REFUSED = "a proc that was spawned meanwhile cannot take the new code"
    OTHERS = "somebody else pushes"


class Do(NamedTuple):
    """Do this piece of work. If ``generation`` is not 0, revert that generation before it."""

    number: int
    work: Work
    token: int = 0
    generation: int = 0


class AskProcs(NamedTuple):
    """Send ``order`` to the procs in ``asked``, given as (number, uid). Pass the answer of each to
    ``voted`` with its number.
    """

    asked: Sequence[tuple[int, str]]
    order: Order
    token: int


class TellProcs(NamedTuple):
    """Send an order that needs no answer to procs."""

    procs: Sequence[str]
    order: Order


class AnswerOrder(NamedTuple):
    """Answer the order that came with this ``token``.

    The answer has the vote, and ``reasons`` as (reason, uid of the proc that it is about); the uid
    is "" for this process.
    """

    token: int
    reasons: Sequence[tuple[Reason, str]] = ()
    seconds: float = 0.0


class Say(NamedTuple):
    """Show people which actors the switch waits for, and for how long already."""

    seconds: float


class TellHeld(NamedTuple):
    """Send a message to the owner that has sent the fence: the fence delays a sender."""

    attempt: int


class Look(NamedTuple):
    """Check whether a message to an actor of this process waits behind the fence; if one does, call
    ``Participant.held``.
    """


Effect = Do | AskProcs | TellProcs | AnswerOrder | Say | TellHeld | Look
Effects = Sequence[Effect]


def answer_to(token: int, *reasons: Reason) -> list[Effect]:
    """Return the effect that answers an order; empty if ``token`` is 0, as the order needs no
    answer.
    """
    return [AnswerOrder(token, [(reason, "") for reason in reasons])] if token else []
