"""Rows of a process's last events, packed for sending and for files."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from monarch.core.event_ring import COLUMNS
from monarch.wire.codec import as_text

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LEVEL = 1
_LONGEST_TEXT = 4000


def pack_rows(rows: list[tuple[Any, ...]]) -> bytes:
    """Pack rows of ``core.event_ring`` for sending; b"" for no rows.

    The receiver turns them into objects, because this runs in a process with busy actors.
    """
    if not rows:
        return b""
    try:
        data = msgspec.msgpack.encode(rows)
    except UnicodeEncodeError:
        data = msgspec.msgpack.encode(as_text(rows))  # A name that is no text.
    return pack(data)


def unpack_rows(packed: bytes) -> list[list[Any]]:
    """Return the rows that `pack_rows` packed. Rows of unknown kinds are left out."""
    if not packed:
        return []
    rows: list[list[Any]] = msgspec.msgpack.decode(unpack(packed))
    return [row for row in rows if row[0] in COLUMNS]


def row_objects(proc: str, rows: list[list[Any]]) -> list[dict[str, Any]]:
    """Return rows of the process ``proc`` as objects: ``k`` is the kind, ``p`` the process."""
    return [_object(proc, row) for row in rows]


def _object(proc: str, row: list[Any]) -> dict[str, Any]:
    kind = row[0]
    fields = dict(zip(COLUMNS[kind], row[1:], strict=False))
    if isinstance(text := fields.get("text"), str) and len(text) > _LONGEST_TEXT:
        fields["text"] = f"{text[:_LONGEST_TEXT]} ..."
    fields["k"], fields["p"] = kind, proc
    return fields


def pack_lines(objects: list[dict[str, Any]]) -> bytes:
    """Return objects as lines of JSON, packed; empty for none."""
    if not objects:
        return b""
    encoder = msgspec.json.Encoder()
    try:
        lines = encoder.encode_lines(objects)
    except UnicodeEncodeError:
        lines = encoder.encode_lines(as_text(objects))  # A name that is no text.
    return pack(lines)


def pack(data: bytes) -> bytes:
    """Return the data as one frame of zstd."""
    return zstd.compress(data, _LEVEL)


def unpack(packed: bytes) -> bytes:
    """Return the contents of frames of zstd, one after the other."""
    return zstd.decompress(packed) if packed else b""


def unpack_lines(packed: bytes) -> list[dict[str, Any]]:
    """Unpack the objects that `pack_lines` packed; several packs one after the other are read as
    one."""
    lines: list[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any]).decode_lines(unpack(packed))
    return lines
