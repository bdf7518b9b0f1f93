"""Messages to frames and back: ``[route][header][payload][buffer]*``.

The route is the uid of the process that the message is for, in front so that an agent that
forwards need not decode the rest. The header's first byte is the protocol version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from monarch.errors import WireError
from monarch.wire.address import Uid
from monarch.wire.message import PROTOCOL_VERSION, AnyMessage

__all__ = ["Bytes", "Envelope", "decode", "encode", "pack", "pack_header", "unpack"]

Bytes = bytes | bytearray | memoryview

_VERSION = bytes([PROTOCOL_VERSION])
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


class Envelope(NamedTuple):
    """A message with what travels beside it."""

    route: Uid
    message: AnyMessage
    payload: Bytes = b""
    buffers: Sequence[Bytes] = ()


def pack(envelope: Envelope) -> list[Bytes]:
    """The frames of a message; buffers are passed on as they are, not copied."""
    route, message, payload, buffers = envelope
    return [route.encode(), _VERSION + _encoder.encode(message), payload, *buffers]


def pack_header(message: AnyMessage) -> bytes:
    """The header of a message."""
    return _VERSION + _encoder.encode(message)


def encode(message: AnyMessage) -> bytes:
    """A header to be carried inside another one."""
    return _encoder.encode(message)


def decode(data: bytes) -> AnyMessage:
    """A header that was carried inside another one. Raises ``WireError``."""
    try:
        message: AnyMessage = _decoder.decode(data)
        return message
    except (msgspec.MsgspecError, RecursionError) as error:
        raise WireError(f"a peer sent a malformed header: {error}") from None


def unpack(frames: Sequence[Bytes]) -> Envelope:
    """A message from its frames. Raises ``WireError`` for anything that is not one."""
    if len(frames) < 3:
        raise WireError(f"a message has at least three frames, not {len(frames)}")
    header = memoryview(frames[1])
    if not header or header[0] != PROTOCOL_VERSION:
        theirs = header[0] if header else "nothing"
        raise WireError(
            f"a peer speaks protocol version {theirs}, this process {PROTOCOL_VERSION}: "
            "install the same release of monarch-loop on both sides"
        )
    try:
        message = _decoder.decode(header[1:])
        route = bytes(frames[0]).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"a peer sent a malformed header: {error}") from None
    return Envelope(route, message, frames[2], frames[3:])
