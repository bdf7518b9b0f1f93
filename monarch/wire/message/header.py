"""Headers: what all messages begin with.

A message is a header and, for those that carry user data, a payload with buffers beside it.
Headers hold only what agents need to route, order and account; they never hold pickles. Validity
is checked where a header is decoded, and trusted afterwards.
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

    The node that asks fills in the ``sender``, and the ``port`` that awaits the answer: 0 where
    nobody waits.
    """

    port: int = 0
    sender: Uid = ""

    @property
    def asker(self) -> ProcAddress | Uid:
        """The process that gets the answer."""
        return self.sender


@functools.cache
def answer_type(kind: type[Request[A]]) -> Any:
    """The type of the answers to a kind of request."""
    (base,) = (b for b in kind.__orig_bases__ if typing.get_origin(b) is Request)  # type: ignore[attr-defined]
    return typing.get_args(base)[0]


class Answer(Message, tag=29):
    """To a request. ``body`` is data, as the request's type says; ``error`` is text for people,
    never a pickle."""

    port: int
    sender: Uid
    body: Any = None
    error: str = ""
