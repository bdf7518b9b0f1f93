"""Messages to frames and back: ``[route][header][payload][buffer]*``.

The route is the uid of the receiving process. It comes first, so that an agent that forwards the
message need not decode the rest. The header's first byte is the protocol version.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from monarch.errors import WireError
from monarch.wire.address import Uid
from monarch.wire.message import PROTOCOL_VERSION, Hello, Message, kinds

Bytes = bytes | bytearray | memoryview

_VERSION = bytes([PROTOCOL_VERSION])
_encoder = msgspec.msgpack.Encoder()
_hello_decoder = msgspec.msgpack.Decoder(Hello)


@functools.cache
def message_decoder() -> msgspec.msgpack.Decoder[Any]:
    """Return the decoder of all messages. It is made at the first use: making it for so many kinds
    takes longer than any of our imports.

    A template process makes it before it forks procs.
    """
    return msgspec.msgpack.Decoder(functools.reduce(operator.or_, kinds()))


M_co = TypeVar("M_co", bound=Message, covariant=True)


class Envelope(msgspec.Struct, Generic[M_co], frozen=True):
    """A message with its route, its payload and its buffers."""

    route: Uid
    message: M_co
    payload: Bytes = b""
    buffers: Sequence[Bytes] = ()


class OtherVersion(WireError):
    """A message has another protocol version than this process.

    ``hello`` is the message if it is its sender's introduction; else None.
    """

    def __init__(self, theirs: int | str, hello: Hello | None) -> None:
        super().__init__(
            f"it speaks protocol version {theirs}, this process {PROTOCOL_VERSION}: "
            "install the same release of monarch-loop on both sides, and start the older side again"
        )
        self.hello = hello


def pack(envelope: Envelope[Message]) -> list[Bytes]:
    """Return the frames of a message; buffers are passed on as they are, not copied."""
    header = _VERSION + _encoder.encode(envelope.message)
    return [envelope.route.encode(), header, envelope.payload, *envelope.buffers]


def pack_header(message: Message) -> bytes:
    """Return the header of a message as bytes."""
    return _VERSION + _encoder.encode(message)


def as_text(value: Any) -> Any:
    """Return a value with strings that can be encoded: bytes of names that are not UTF-8 are
    escaped."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {as_text(name): as_text(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_text(item) for item in value]
    return value


def encode(message: Message) -> bytes:
    """Return a message as bytes, to be carried inside another message."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """Return a message that was carried inside another one. Raises ``WireError`` if it is
    malformed."""
    try:
        message: Message = message_decoder().decode(data)
        return message
    except (msgspec.MsgspecError, RecursionError) as error:
        raise WireError(f"a peer sent a malformed header: {error}") from None


def unpack(frames: Sequence[Bytes]) -> Envelope[Message]:
    """Return the message in some frames. Raises ``WireError`` if they do not contain a legal
    message.
    """
    if len(frames) < 3:
        raise WireError(f"a message has at least three frames, not {len(frames)}")
    header = memoryview(frames[1])
    if not header or header[0] != PROTOCOL_VERSION:
        raise OtherVersion(header[0] if header else "nothing", _hello(header[1:]))
    try:
        message = message_decoder().decode(header[1:])
        route = bytes(frames[0]).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"a peer sent a malformed header: {error}") from None
    return Envelope(route, message, frames[2], frames[3:])


def _hello(data: memoryview) -> Hello | None:
    """Return the introduction in a header of another version; None if it is no introduction."""
    try:
        hello: Hello = _hello_decoder.decode(data)
        return hello
    except (msgspec.MsgspecError, RecursionError):
        return None
