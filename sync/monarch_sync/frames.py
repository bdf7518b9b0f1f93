"""Frames: records in a file that is only appended to.

A frame is the length of a record, a checksum, and the record. Reading stops at a torn frame. That
loses nothing: a program that appends acts on a record only once it is written whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import xxhash

from monarch_sync.content.digest import BLOCK_BYTES, LARGE_BYTES

_T = TypeVar("_T")
_HEAD = struct.Struct("<I16s")


def frame(record: object) -> bytes:
    """Return a record as a frame, ready to be appended."""
    data = msgspec.msgpack.encode(record)
    return _HEAD.pack(len(data), _checksum(data)) + data


def read_frames(path: Path, decoder: msgspec.msgpack.Decoder[_T]) -> Iterator[tuple[_T, int]]:
    """Yield the intact records of a file, each with the offset of its end; none if the file does
    not exist."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    for record, end in frames_in(data):
        try:
            yield decoder.decode(record), end
        except msgspec.MsgspecError:
            return


def frames_in(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the intact records at the start of ``data``, each with the offset of its end."""
    at = 0
    while len(data) >= at + _HEAD.size:
        size, checksum = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        record = data[at : at + size]
        at += size
        if len(record) < size or _checksum(record) != checksum:
            return
        yield record, at


def _checksum(record: bytes) -> bytes:
    """Return a checksum that finds torn or damaged records."""
    if len(record) < LARGE_BYTES:
        return xxhash.xxh3_128_digest(record)
    return xxhash.xxh3_128_digest(
        b"".join(
            xxhash.xxh3_128_digest(record[at : at + BLOCK_BYTES])
            for at in range(0, len(record), BLOCK_BYTES)
        )
    )
