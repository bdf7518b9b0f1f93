"""Frames: records in a file that is appended to.

A frame is its length, a checksum, its bytes. One that was torn ends the file: an appender does
nothing on the strength of a record before it is written whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import xxhash

from monarch_sync.content.digest import BLOCK_BYTES, LARGE_BYTES

_HEAD = struct.Struct("<I16s")


def frame(record: bytes) -> bytes:
    """A record, ready to be appended."""
    return _HEAD.pack(len(record), _checksum(record)) + record


def frames_in(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The sound records at the start of ``data``, each with the place where it ends."""
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
