"""The messages of a push, between an author and a host's replica.

    author                         host
    Stage (what changes, blobs) →  Staged, or Need (more blobs, or the whole manifest), or Refused
    Supply (more blobs)         →  the same
    Commit                      →  Committed, or Refused
    Abort                       →  Aborted

Blobs travel beside a message, in the order of its ``blobs``; each is a content, many contents, or
the delta (`delta.py`) to one from one that the host has. ``size`` is what travels.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from monarch_sync.entry import Row
from monarch_sync.errors import BadMessage, VersionMismatch

__all__ = [
    "PROTOCOL_VERSION",
    "Abort",
    "Aborted",
    "Blob",
    "Commit",
    "Committed",
    "Message",
    "Need",
    "Refused",
    "Stage",
    "Staged",
    "Supply",
    "decode",
    "encode",
]

PROTOCOL_VERSION = 3


class Blob(msgspec.Struct, array_like=True, frozen=True):
    """What travels beside a message.

    ``raw``: a content. ``delta``: pieces, and ``patch``: a frame, that make it from ``base``, a
    content that the host has. ``pack``: ``parts`` one after the other, each (digest, size);
    ``frame``: the same, compressed. Those two have no digest of their own.
    """

    digest: bytes
    size: int
    encoding: Literal["raw", "delta", "patch", "pack", "frame"] = "raw"
    base: bytes = b""
    parts: list[tuple[bytes, int]] = []


class Stage(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Get a state ready. ``base`` empty: ``changed`` is the whole manifest. ``moves``: folders of
    the base that have another name now, as (old, new); what else changed is told as from there."""

    generation: int
    author: str
    digest_name: str
    digest: bytes
    base: bytes
    changed: list[Row]
    removed: list[bytes]
    blobs: list[Blob]
    moves: list[tuple[bytes, bytes]] = []


class Supply(msgspec.Struct, tag=9, array_like=True, frozen=True):
    """More contents for the state that is being staged."""

    generation: int
    blobs: list[Blob]


class Commit(msgspec.Struct, tag=2, array_like=True, frozen=True):
    generation: int


class Abort(msgspec.Struct, tag=3, array_like=True, frozen=True):
    generation: int


class Need(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """Not yet: these contents are missing; or, where ``whole``, the manifest itself is."""

    digests: list[bytes]
    whole: bool = False


class Staged(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """Ready. ``files`` gives, for each file that will change, where its new content lies now,
    an empty place for one that will be gone; as (path below the root, place). Not so those in
    ``moves``: folders that only get another name, as (old, new)."""

    generation: int
    files: list[tuple[bytes, bytes]]
    num_written: int
    num_moved: int
    num_deleted: int
    num_unchanged: int
    moves: list[tuple[bytes, bytes]] = []


class Committed(msgspec.Struct, tag=6, array_like=True, frozen=True):
    """Done. ``kept`` are names under which files changed on the host were saved."""

    generation: int
    kept: list[bytes]


class Aborted(msgspec.Struct, tag=7, array_like=True, frozen=True):
    generation: int


class Refused(msgspec.Struct, tag=8, array_like=True, frozen=True):
    """No; nothing visible has changed. ``code`` is for programs, ``reason`` for people."""

    code: str
    reason: str
    path: str = ""
    current: int = 0


Message = Stage | Supply | Commit | Abort | Need | Staged | Committed | Aborted | Refused

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


_last_encoded: tuple[Message | None, bytes] = (None, b"")


def encode(message: Message) -> bytes:
    """The message as bytes, with the protocol's version in front."""
    global _last_encoded
    last, data = _last_encoded
    if last is not message:
        data = bytes([PROTOCOL_VERSION]) + _encoder.encode(message)
        if isinstance(message, Stage | Supply):
            # As a rule it goes to many hosts, and may be long.
            _last_encoded = message, data
    return data


def decode(data: bytes | memoryview) -> Message:
    """The message in ``data``. Raises ``BadMessage``, ``VersionMismatch`` for another version."""
    view = memoryview(data)
    if not view:
        raise BadMessage("it is empty")
    if view[0] != PROTOCOL_VERSION:
        raise VersionMismatch(PROTOCOL_VERSION, view[0])
    try:
        message: Message = _decoder.decode(view[1:])
    except msgspec.MsgspecError as error:
        raise BadMessage(str(error)) from None
    return message
