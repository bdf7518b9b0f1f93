"""Frames: records in a file that is appended to.

A frame is its length, its digest, its bytes. One that was torn ends the file: whoever appends does
nothing on the strength of a record before it is written whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from monarch_sync.digest import DIGEST_BYTES, digest_bytes

__all__ = ["frame", "frames_in"]

_HEAD = struct.Struct(f"<I{DIGEST_BYTES}s")


def frame(record: bytes) -> bytes:
    """A record, ready to be appended."""
    return _HEAD.pack(len(record), digest_bytes(record)) + record


def frames_in(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The sound records at the start of ``data``, each with the place where it ends."""
    at = 0
    while len(data) >= at + _HEAD.size:
        size, digest = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        record = data[at : at + size]
        at += size
        if len(record) < size or digest_bytes(record) != digest:
            return
        yield record, at
