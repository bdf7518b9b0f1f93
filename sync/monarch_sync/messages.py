"""The messages of a push, between an author and a host's replica.

    author                         host
    Instalment (some entries,   →  Need (what the host lacks of them), or Refused
      and blobs)
    StageRequest (what changes, →  Staged, or Need (more blobs, or the whole manifest), or Refused
      and blobs)
    Supply (more blobs)         →  the same
    Commit                      →  Committed, or Refused
    Abort                       →  Aborted

Questions that change nothing, about what the host has and had:

    AskHistory                  →  HistoryReply
    AskState (generation)       →  StateReply, or Refused
    AskMissing (digests)        →  Need
    AskContent (a piece of one) →  Piece, or Refused
    AskChanges (between two)    →  Changes, or Refused

Blobs travel beside a message, in the order of its ``blobs``; each is a content, many contents, or a
delta (`delta.py`) from a content that the host has. ``size`` is the number of bytes sent.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from monarch_sync.errors import BadMessage, VersionMismatch
from monarch_sync.tree.entry import Row

PROTOCOL_VERSION = 5


class Blob(msgspec.Struct, array_like=True, frozen=True):
    """Describes bytes that are sent beside a message. ``encoding`` says what the bytes are:

    ``raw``: a content. ``patch``: a zstd frame that makes the content from ``base``, the digest of
    a content that the host has. ``delta``: the same, as pieces. ``pack``: several contents one
    after the other; ``parts`` has the (digest, size) of each. ``frame``: a compressed pack. For a
    pack and a frame, ``digest`` is not used.
    """

    digest: bytes
    size: int
    encoding: Literal["raw", "delta", "patch", "pack", "frame"] = "raw"
    base: bytes = b""
    parts: list[tuple[bytes, int]] = []


class Instalment(msgspec.Struct, tag=10, array_like=True, frozen=True):
    """A part of a first state: entries and their contents, folders before what is in them. The
    author sends it while it still scans the rest.

    The host may drop an instalment. If a stage refers to a dropped instalment, the host answers
    with ``Need``.
    """

    generation: int
    author: str
    rows: list[Row]
    blobs: list[Blob]


class StageRequest(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Ask the host to prepare a state: ``changed`` and ``removed`` are applied to the state
    ``base``. If ``base`` is empty, ``changed`` is the whole manifest.

    ``moves``: folders of the base that were renamed, as (old, new); the other changes apply after
    the moves. ``takes_back``: the push restores the state before the host's present generation,
    because a process could not switch to that generation. ``ahead``: the digest of all entries that
    instalments have brought; if it is set, the changes apply to these entries.
    """

    generation: int
    author: str
    digest_name: str
    digest: bytes
    base: bytes
    changed: list[Row]
    removed: list[bytes]
    blobs: list[Blob]
    moves: list[tuple[bytes, bytes]] = []
    takes_back: bool = False
    ahead: bytes = b""


class Supply(msgspec.Struct, tag=9, array_like=True, frozen=True):
    """More contents for the state that is being staged."""

    generation: int
    blobs: list[Blob]


class Commit(msgspec.Struct, tag=2, array_like=True, frozen=True):
    generation: int


class Abort(msgspec.Struct, tag=3, array_like=True, frozen=True):
    generation: int


class Need(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """Not ready: the host lacks the contents ``digests``. With ``whole``, it needs the whole
    manifest, as it does not have the base."""

    digests: list[bytes]
    whole: bool = False


class Staged(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """Ready. ``files`` lists each file that will change as (path below the root, path of its new
    content), with an empty path for a file that will be deleted.

    ``moves``: folders that are only renamed, as (old, new); their files are not in ``files``.
    ``num_links``, ``num_modes`` and ``num_folders`` count links that change, files and folders of
    which only the mode changes, and empty folders that are made or deleted.
    """

    generation: int
    files: list[tuple[bytes, bytes]]
    num_written: int
    num_moved: int
    num_deleted: int
    num_unchanged: int
    moves: list[tuple[bytes, bytes]] = []
    num_links: int = 0
    num_modes: int = 0
    num_folders: int = 0


class Committed(msgspec.Struct, tag=6, array_like=True, frozen=True):
    """Done. ``kept``: the new names of files that had been changed on the host and were saved."""

    generation: int
    kept: list[bytes]


class Aborted(msgspec.Struct, tag=7, array_like=True, frozen=True):
    generation: int


class Refused(msgspec.Struct, tag=8, array_like=True, frozen=True):
    """The host refuses; nothing visible has changed. ``code`` is for programs, ``reason`` for
    people."""

    code: str
    reason: str
    path: str = ""
    current: int = 0


class AskHistory(msgspec.Struct, tag=40, array_like=True, frozen=True):
    """Ask for the latest ``limit`` generations of this host."""

    limit: int


class ToldGeneration(msgspec.Struct, array_like=True, frozen=True):
    """A generation that a host has had. ``age_seconds``: how long ago it was committed; a point in
    time would mislead, because the clocks of hosts differ.

    ``paths`` are the first of the ``num_changed`` files. ``is_whole`` is False if the host cannot
    restore the generation: some contents, or records of later changes, are gone. ``is_taken_back``:
    the generation was undone, as a process could not switch to it.
    """

    generation: int
    age_seconds: float
    author: str
    digest: bytes
    num_files: int
    num_changed: int
    paths: list[bytes]
    is_whole: bool
    is_taken_back: bool = False


class HistoryReply(msgspec.Struct, tag=41, array_like=True, frozen=True):
    """The host's generations, newest first."""

    generation: int
    digest: bytes
    generations: list[ToldGeneration]


class AskState(msgspec.Struct, tag=42, array_like=True, frozen=True):
    """Ask for the entries of a generation; 0 means the present one."""

    generation: int


class StateReply(msgspec.Struct, tag=43, array_like=True, frozen=True):
    """All entries of a generation. ``missing`` are the digests of those of its contents that this
    host lacks.
    """

    generation: int
    digest_name: str
    digest: bytes
    rows: list[Row]
    missing: list[bytes]


class AskMissing(msgspec.Struct, tag=44, array_like=True, frozen=True):
    """Ask which of these contents the host lacks, so that the author would have to send them."""

    digests: list[bytes]


class AskContent(msgspec.Struct, tag=45, array_like=True, frozen=True):
    """Ask for ``size`` bytes of a content, from ``offset`` on."""

    digest: bytes
    offset: int
    size: int


class Piece(msgspec.Struct, tag=46, array_like=True, frozen=True):
    """A part of a content. It is shorter than was asked for only at the content's end."""

    data: bytes


class AskChanges(msgspec.Struct, tag=47, array_like=True, frozen=True):
    """Ask for the changes from one generation to another."""

    since: int
    generation: int


class Changes(msgspec.Struct, tag=48, array_like=True, frozen=True):
    """The entries that differ between an earlier generation and ``generation``: ``before`` are the
    entries of the earlier generation, ``now`` the entries of ``generation``.

    ``digest`` and ``age_seconds`` describe ``generation``.
    """

    generation: int
    digest: bytes
    age_seconds: float
    before: list[Row]
    now: list[Row]


_FromAuthor = Instalment | StageRequest | Supply | Commit | Abort
Question = AskHistory | AskState | AskMissing | AskContent | AskChanges
_FromHost = (
    Need | Staged | Committed | Aborted | Refused | HistoryReply | StateReply | Piece | Changes
)
Message = _FromAuthor | _FromHost | Question

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_last_encoded: tuple[Message | None, bytes] = (None, b"")


def encode(message: Message) -> bytes:
    """Return a message as bytes, with the protocol's version in front."""
    global _last_encoded
    if isinstance(message, Refused):
        message = msgspec.structs.replace(
            message, reason=_as_text(message.reason), path=_as_text(message.path)
        )
    last, data = _last_encoded
    if last is not message:
        data = bytes([PROTOCOL_VERSION]) + _encoder.encode(message)
        if isinstance(message, Instalment | StageRequest | Supply):
            # It may be long, and often goes to many hosts.
            _last_encoded = message, data
    return data


def decode(data: bytes | memoryview) -> Message:
    """Return the message in ``data``.

    Raises ``VersionMismatch`` if it has another version, and ``BadMessage`` if it is malformed.
    """
    view = memoryview(data)
    if not view:
        raise BadMessage("it is empty")
    if view[0] != PROTOCOL_VERSION:
        raise VersionMismatch(PROTOCOL_VERSION, view[0])
    try:
        return _decoder.decode(view[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(str(error)) from None


def _as_text(text: str) -> str:
    """Return text that can be encoded: bytes of a name that is not UTF-8 are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()
