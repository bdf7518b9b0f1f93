"""Replaces a payload that could not be transferred: unpickling the replacement raises the error."""

from __future__ import annotations

import msgspec

from monarch.errors import WireError
from monarch.wire import payload
from monarch.wire.codec import Bytes, Envelope
from monarch.wire.message import Message, Replies


class _Broken:
    """An object whose unpickling raises the error."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __reduce__(self) -> tuple[object, ...]:
        return _raise, (self._why,)


def _raise(why: str) -> None:
    raise WireError(f"a large message could not be received: {why}")


def broken_payload(why: str) -> Bytes:
    """Return a payload that raises ``WireError``, with ``why``, when it is unpickled."""
    return payload.dump(_Broken(why)).data


def broken(inner: Envelope[Message], why: str) -> Envelope[Message]:
    """Return the message with a payload that raises ``WireError`` when it is unpickled.

    If the message has the answers of several ranks, each answer gets such a payload.
    """
    data = broken_payload(why)
    message = inner.message
    if isinstance(message, Replies):
        items = tuple(msgspec.structs.replace(item, num_buffers=0) for item in message.items)
        each = msgspec.structs.replace(message, items=items)
        return msgspec.structs.replace(
            inner, message=each, payload=b"", buffers=[data] * len(items)
        )
    return msgspec.structs.replace(inner, payload=data, buffers=())
