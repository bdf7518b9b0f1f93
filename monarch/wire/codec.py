"""Messages to frames and back: ``[route][header][payload][buffer]*``.

The route is the uid of the process that the message is for, in front so that an agent that
forwards need not decode the rest. The header's first byte is the protocol version.
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
    """Made when it is first used: for so many kinds it takes longer than any import of ours.

    A template makes it ahead of its procs.
    """
    return msgspec.msgpack.Decoder(functools.reduce(operator.or_, kinds()))


M_co = TypeVar("M_co", bound=Message, covariant=True)


class Envelope(msgspec.Struct, Generic[M_co], frozen=True):
    """A message with what travels beside it."""

    route: Uid
    message: M_co
    payload: Bytes = b""
    buffers: Sequence[Bytes] = ()


class OtherVersion(WireError):
    """A message of another protocol version. ``hello``: its sender, where known."""

    def __init__(self, theirs: int | str, hello: Hello | None) -> None:
        super().__init__(
            f"it speaks protocol version {theirs}, this process {PROTOCOL_VERSION}: "
            "install the same release of monarch-loop on both sides, and start the older side again"
        )
        self.hello = hello


def pack(envelope: Envelope[Message]) -> list[Bytes]:
    """The frames of a message; buffers are passed on as they are, not copied."""
    header = _VERSION + _encoder.encode(envelope.message)
    return [envelope.route.encode(), header, envelope.payload, *envelope.buffers]


def pack_header(message: Message) -> bytes:
    """The header of a message."""
    return _VERSION + _encoder.encode(message)


def as_text(value: Any) -> Any:
    """A value whose strings can travel: bytes of names that are not UTF-8 are escaped."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {as_text(name): as_text(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_text(one) for one in value]
    return value


def encode(message: Message) -> bytes:
    """A header to be carried inside another one."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """A header that was carried inside another one. Raises ``WireError``."""
    try:
        message: Message = message_decoder().decode(data)
        return message
    except (msgspec.MsgspecError, RecursionError) as error:
        raise WireError(f"a peer sent a malformed header: {error}") from None


def unpack(frames: Sequence[Bytes]) -> Envelope[Message]:
    """A message from its frames. Raises ``WireError`` for anything that is not one."""
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
    """Whether a header of another version introduces its sender."""
    try:
        hello: Hello = _hello_decoder.decode(data)
        return hello
    except (msgspec.MsgspecError, RecursionError):
        return None
