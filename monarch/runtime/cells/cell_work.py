"""What an actor is given to do, besides messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from monarch.core.mailbox import Delivery, Fence, Halt, Lift, Resume
from monarch.errors import MeshFailure
from monarch.runtime.cells.undelivered import Undelivered
from monarch.wire.codec import Envelope

__all__ = ["Event", "Fail", "Judge", "Reloaded", "Work"]


class Judge(NamedTuple):
    """Ask ``__supervise__`` about a failure; pass on what it says, or what it raised."""

    failure: MeshFailure
    verdict: Callable[[bool, str], None]


class Reloaded(NamedTuple):
    """Code was patched: tell the instance, and say what its hook raised."""

    change: Any
    heard: Callable[[BaseException | None], None]


class Fail(NamedTuple):
    """The actor fails, because of ``cause`` or of an error of its own, or of both."""

    cause: MeshFailure | None
    reason: str


Work = Envelope | Judge | Reloaded | Fail | Undelivered

Event = Delivery | Fence | Lift | Halt | Resume
"""What comes into an actor's inbox; the work is in the deliveries."""
