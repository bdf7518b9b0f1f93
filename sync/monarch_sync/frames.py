"""Frames: records in a file that is only appended to.

A frame is the record's length, a checksum, and its bytes. Reading stops at a torn frame. That loses
nothing: a program that appends acts on a record only once it is written whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import xxhash

from monarch_sync.content.digest import BLOCK_BYTES, LARGE_BYTES

_HEAD = struct.Struct("<I16s")


def frame(record: bytes) -> bytes:
    """Return a record as a frame, ready to be appended."""
    return _HEAD.pack(len(record), _checksum(record)) + record


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
