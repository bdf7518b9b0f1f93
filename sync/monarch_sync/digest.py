"""Digest of content: what a file is known by, on both ends.

xxh3_128 finds changes and addresses content; it is not forgery-proof. That is right inside one
authenticated session. A store that several parties write to would need a cryptographic digest,
which is why the name travels in every manifest.

A large content is known by the digest of its blocks' digests. So who knows those, and changes a
block, knows the new digest without reading the rest.
"""

from __future__ import annotations

from typing import BinaryIO

import xxhash

DIGEST_NAME = "xxh3_128/64k"
DIGEST_BYTES = 16
LARGE_BYTES = 8 << 20  # a content of this size or more is known by its blocks
BLOCK_BYTES = 64 << 10

_READ = 1 << 20


def digest_bytes(content: bytes | bytearray | memoryview) -> bytes:
    """The digest of `content`, 16 bytes."""
    if len(content) < LARGE_BYTES:
        return xxhash.xxh3_128_digest(content)
    return digest_of_blocks(blocks_of(content))


def blocks_of(content: bytes | bytearray | memoryview) -> bytes:
    """The digests of a content's blocks, one after the other."""
    view, digest = memoryview(content), xxhash.xxh3_128_digest
    return b"".join(
        digest(view[at : at + BLOCK_BYTES]) for at in range(0, len(view), BLOCK_BYTES)
    )  # fmt: skip


def digest_of_blocks(blocks: bytes | bytearray) -> bytes:
    """The digest of a large content whose blocks have these."""
    return xxhash.xxh3_128_digest(blocks)


class ContentHasher:
    """The digest of a content that comes bit by bit."""

    def __init__(self) -> None:
        self._whole = xxhash.xxh3_128()
        self._rest = b""
        self.blocks = bytearray()
        self.size = 0

    def update(self, data: bytes | bytearray | memoryview) -> None:
        if self.size < LARGE_BYTES:
            self._whole.update(data)
        self.size += len(data)
        view = memoryview(data)
        if self._rest:
            missing = BLOCK_BYTES - len(self._rest)
            self._rest += bytes(view[:missing])
            view = view[missing:]
            if len(self._rest) < BLOCK_BYTES:
                return
            self.blocks += xxhash.xxh3_128_digest(self._rest)
        num_full = len(view) - len(view) % BLOCK_BYTES
        self.blocks += blocks_of(view[:num_full])
        self._rest = bytes(view[num_full:])

    def digest(self) -> bytes:
        """Of all so far; nothing may come after it."""
        if self._rest:
            self.blocks += xxhash.xxh3_128_digest(self._rest)
            self._rest = b""
        return digest_of_blocks(self.blocks) if self.size >= LARGE_BYTES else self._whole.digest()


def digest_stream(stream: BinaryIO) -> tuple[bytes, int]:
    """The digest of what is left in `stream`, and how many bytes that was."""
    first = stream.read(_READ)
    if len(first) < _READ:
        # As a rule that is all; an unbuffered stream may give less than it has.
        more = stream.read(_READ) if first else b""
        if not more:
            return digest_bytes(first), len(first)
        first += more
    hasher = ContentHasher()
    hasher.update(first)
    while block := stream.read(_READ):
        hasher.update(block)
    return hasher.digest(), hasher.size


def short(digest: bytes) -> str:
    """The first eight hexadecimal digits, for names and messages."""
    return digest.hex()[:8]
