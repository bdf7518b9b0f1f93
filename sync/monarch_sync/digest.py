"""Digest of content: what a file is known by, on both ends.

xxh3_128 finds changes and addresses content; it is not forgery-proof. That is right inside one
authenticated session. A store that several parties write to would need a cryptographic digest,
which is why the name travels in every manifest.
"""

from __future__ import annotations

from typing import BinaryIO

import xxhash

DIGEST_NAME = "xxh3_128"
DIGEST_BYTES = 16

_BLOCK = 1 << 20


def digest_bytes(content: bytes | bytearray | memoryview) -> bytes:
    """The digest of `content`, 16 bytes."""
    return xxhash.xxh3_128_digest(content)


def digest_stream(stream: BinaryIO) -> tuple[bytes, int]:
    """The digest of what is left in `stream`, and how many bytes that was."""
    hasher = xxhash.xxh3_128()
    size = 0
    while block := stream.read(_BLOCK):
        hasher.update(block)
        size += len(block)
    return hasher.digest(), size


def short(digest: bytes) -> str:
    """The first eight hexadecimal digits, for names and messages."""
    return digest.hex()[:8]
