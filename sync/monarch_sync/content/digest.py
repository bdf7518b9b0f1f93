"""Digest of content: author and host both name a content by its digest.

It is the first half of SHA-256. The content may come from strangers, as a pull request or a data
set, and nobody can make two contents with one digest; processors have instructions for it. The name
of the digest travels in every manifest, so that two sides with different digests refuse each other.

The digest of a large content is the digest of its blocks' digests. So a program that has those, and
changes a block, computes the new digest without reading the rest. A quick hash of each block
(`QuickBlocks`) shows which blocks of a file have changed since this process last read it. It is
xxh3 with a secret seed; neither the seed nor the hashes leave the process.
"""

from __future__ import annotations

import os
from hashlib import sha256
from typing import BinaryIO, NamedTuple

import xxhash

DIGEST_NAME = "sha256/128/64k"
DIGEST_BYTES = 16
LARGE_BYTES = 8 << 20  # a content of this size or more is known by its blocks
BLOCK_BYTES = 64 << 10

_READ = 1 << 20
_SECRET = int.from_bytes(os.urandom(8), "big")


def digest_bytes(content: bytes | bytearray | memoryview) -> bytes:
    """Return the digest of `content`, which has 16 bytes."""
    if len(content) < LARGE_BYTES:
        return sha256(content).digest()[:DIGEST_BYTES]
    return digest_of_blocks(blocks_of(content))


def blocks_of(content: bytes | bytearray | memoryview) -> bytes:
    """Return the digests of a content's blocks, joined in order."""
    view = memoryview(content)
    return b"".join(
        sha256(view[at : at + BLOCK_BYTES]).digest()[:DIGEST_BYTES]
        for at in range(0, len(view), BLOCK_BYTES)
    )


def digest_of_blocks(blocks: bytes | bytearray) -> bytes:
    """Return the digest of a large content from the digests of its blocks."""
    # The other half: or a small content of these very bytes would have the same digest.
    return sha256(blocks).digest()[DIGEST_BYTES:]


class QuickBlocks(NamedTuple):
    """A fast hash (``quick``) and the digest of each block of a large content; both are empty if
    they were not computed."""

    quick: bytes = b""
    digests: bytes = b""


class ContentHasher:
    """Computes the digest of a content that is added piece by piece.

    ``is_large``: the content will have many blocks, so the digests of blocks are put into
    ``blocks`` from the first block on. With ``old``, a block that is the same as in ``old`` is not
    digested again.
    """

    def __init__(self, *, is_large: bool = False, old: QuickBlocks | None = None) -> None:
        self._is_large = is_large
        self._old = old
        #: The content so far, while it is shorter than LARGE_BYTES.
        self._small_parts: list[bytes] = []
        #: The beginning of a block whose end has not been added yet.
        self._rest = b""
        #: The quick hashes of the blocks so far; stays empty without ``old``.
        self._quick = bytearray()
        #: The digests of the blocks so far, joined.
        self.blocks = bytearray()
        self.size = 0

    @property
    def quick_blocks(self) -> QuickBlocks:
        """Return the hashes of this content, to pass as ``old`` when the same file is read again.

        They are filled only if this hasher was itself made with an ``old``, even an empty one.
        """
        return QuickBlocks(bytes(self._quick), bytes(self.blocks))

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Add the next bytes of the content."""
        was_small = self.size < LARGE_BYTES
        self.size += len(data)
        if was_small:
            self._small_parts.append(bytes(data))
            if self.size >= LARGE_BYTES:
                data = data if self._is_large else b"".join(self._small_parts)
                self._small_parts.clear()
            elif not self._is_large:
                return
        self._split(data)

    def _split(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        if self._rest:
            missing = BLOCK_BYTES - len(self._rest)
            self._rest += bytes(view[:missing])
            view = view[missing:]
            if len(self._rest) < BLOCK_BYTES:
                return
            self._add(self._rest)
        num_full = len(view) - len(view) % BLOCK_BYTES
        self._add(view[:num_full])
        self._rest = bytes(view[num_full:])

    def _add(self, whole: bytes | memoryview) -> None:
        """Add the digests of some blocks to ``blocks``. ``whole`` has whole blocks, or is the last
        block.

        If the fast hash of a block equals the hash in ``old``, its digest is copied from ``old``.
        """
        if self._old is None:
            self.blocks += blocks_of(whole)
            return
        view, at = memoryview(whole), len(self.blocks)
        quick = b"".join(
            xxhash.xxh3_128_digest(view[start : start + BLOCK_BYTES], seed=_SECRET)
            for start in range(0, len(view), BLOCK_BYTES)
        )
        self._quick += quick
        old = self._old
        if quick == old.quick[at : at + len(quick)]:
            self.blocks += old.digests[at : at + len(quick)]
            return
        for index in range(0, len(quick), DIGEST_BYTES):
            begin, end = at + index, at + index + DIGEST_BYTES
            if quick[index : index + DIGEST_BYTES] == old.quick[begin:end]:
                self.blocks += old.digests[begin:end]
            else:
                start = index // DIGEST_BYTES * BLOCK_BYTES
                self.blocks += blocks_of(view[start : start + BLOCK_BYTES])

    def digest(self) -> bytes:
        """Return the digest of all bytes so far. No bytes may be added after this call."""
        if self.size < LARGE_BYTES:
            return digest_bytes(b"".join(self._small_parts))
        if self._rest:
            self._add(self._rest)
            self._rest = b""
        return digest_of_blocks(self.blocks)


def digest_stream(stream: BinaryIO) -> tuple[bytes, int]:
    """Return the digest of the rest of `stream`, and how many bytes that was."""
    first = stream.read(_READ)
    if len(first) < _READ:
        # Nearly always the whole content, but an unbuffered stream may return less than it has.
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
    """Return the first eight hexadecimal digits of a digest, for names and messages."""
    return digest.hex()[:8]
