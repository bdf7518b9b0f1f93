"""Headers: the bases of all messages.

A message is a header and, if it carries user data, a payload with buffers beside it. Headers
contain only what agents need to route, order and account for a message; they never contain pickles.
They are checked when they are decoded, and trusted afterwards.
"""

from __future__ import annotations

import functools
import typing
from typing import Any, Generic, TypeVar

import msgspec

from monarch.wire.address import ProcAddress, Uid

PROTOCOL_VERSION = 1


class Message(msgspec.Struct, array_like=True):
    """Base of all headers."""


Body = dict[str, Any]
A = TypeVar("A")


class Request(Message, Generic[A], kw_only=True):
    """A message that is answered by an ``Answer``, whose body is an ``A``.

    The asking node sets the ``sender``, and the ``port`` for the answer: 0 if it expects none.
    """

    port: int = 0
    sender: Uid = ""

    @property
    def asker(self) -> ProcAddress | Uid:
        """The process that gets the answer."""
        return self.sender


@functools.cache
def answer_type(kind: type[Request[A]]) -> Any:
    """Return the type of the answers to a kind of request."""
    (base,) = (b for b in kind.__orig_bases__ if typing.get_origin(b) is Request)  # type: ignore[attr-defined]
    return typing.get_args(base)[0]


class Answer(Message, tag=29):
    """The answer to a request. ``body`` is data, of the request's answer type; ``error`` is text
    for people, never a pickle."""

    port: int
    sender: Uid
    body: Any = None
    error: str = ""
