"""Chunks: a large file in pieces, cut so that most pieces stay the same after an edit.

The first time, a file is cut into chunks of equal size. Later cuts follow the old chunks: where the
file does not continue with the expected chunk, `cut` searches for the beginnings of the next few.
So an insertion or a deletion changes only the chunks that it touches, not all behind it. Only the
author cuts: the chunks show it which parts of the old content, which the host has, are in the new
content.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from monarch_sync.content.digest import (
    BLOCK_BYTES,
    DIGEST_BYTES,
    ContentHasher,
    QuickBlocks,
    digest_bytes,
)

_CHUNK = 64 << 10
_WINDOW = 8 << 20  # an insertion that is longer hides the chunks behind it
_STEPS = (0, 1, 2, 4, 8, 16, 64, 256)  # the following chunks that a search looks for
_PATIENCE = 64  # chunks after a search in vain, before the next search
_ANCHOR = 32


class ContentChunk(NamedTuple):
    """One piece of a content. ``anchor``: its first bytes. ``cut`` searches for them in a later
    version of the content, where the piece may be at another offset."""

    size: int
    digest: bytes
    anchor: bytes


class Chunks(NamedTuple):
    """All pieces of one content, in order. ``blocks`` are hashes of the content's blocks, by which
    the next ``cut`` finds the blocks that have changed."""

    chunks: list[ContentChunk]
    blocks: QuickBlocks = QuickBlocks()

    def places(self) -> tuple[dict[bytes, int], dict[int, bytes]]:
        """Return the offset of each chunk, by digest; and the digest of the chunk at each
        offset."""
        offsets: dict[bytes, int] = {}
        digests: dict[int, bytes] = {}
        offset = 0
        for chunk in self.chunks:
            offsets.setdefault(chunk.digest, offset)
            digests[offset] = chunk.digest
            offset += chunk.size
        return offsets, digests


class _Tape:
    """A stream with a buffer: it keeps bytes that were read and not yet consumed."""

    def __init__(self, stream: BinaryIO, old_blocks: QuickBlocks) -> None:
        self._stream = stream
        self._hasher = ContentHasher(is_large=True, old=old_blocks)
        self._buffer = b""
        self._at = 0
        self.size = 0

    def ahead(self, size: int) -> memoryview:
        """Return the next `size` bytes without consuming them; fewer at the end of the stream."""
        missing = size - (len(self._buffer) - self._at)
        if missing > 0:
            more = self._stream.read(max(missing, 1 << 20))
            self._hasher.update(more)
            self.size += len(more)
            self._buffer = self._buffer[self._at :] + more
            self._at = 0
        return memoryview(self._buffer)[self._at : self._at + size]

    def find(self, anchor: bytes) -> int:
        """Return how many bytes lie between the stream's position and the next ``anchor``. Return
        -1 if the next ``_WINDOW`` bytes do not have it.
        """
        self.ahead(_WINDOW)
        index = self._buffer.find(anchor, self._at, self._at + _WINDOW)
        return index - self._at if index >= 0 else -1

    def skip(self, size: int) -> None:
        self._at += size

    def blocks_ahead(self) -> bytearray:
        """Return the digests of the whole blocks in the buffer that begin at the stream's position
        or after it. Empty if the position is not at the start of a block.
        """
        index, inside = divmod(self.size - len(self._buffer) + self._at, BLOCK_BYTES)
        return bytearray() if inside else self._hasher.blocks[index * DIGEST_BYTES :]

    def digest_of(self, ahead: memoryview) -> bytes:
        """Return the digest of the next bytes, which the caller passes as ``ahead``.

        The digest of a whole block is taken from ``blocks_ahead`` if it is there, and not computed
        again.
        """
        if len(ahead) == BLOCK_BYTES and (blocks := self.blocks_ahead()):
            return bytes(blocks[:DIGEST_BYTES])
        return digest_bytes(ahead)

    def digest(self) -> bytes:
        return self._hasher.digest()

    def quick_blocks(self) -> QuickBlocks:
        return self._hasher.quick_blocks


def cut(stream: BinaryIO, old: Chunks | None) -> tuple[bytes, int, Chunks]:
    """Cut the rest of ``stream`` into chunks, and return (digest of the content, size in bytes,
    chunks).

    If the content has a chunk of ``old``, possibly at another offset, it is cut at the same bytes
    again. Pass None for ``old`` if no earlier version is known.
    """
    tape = _Tape(stream, old.blocks if old else QuickBlocks())
    chunks = list(_follow(tape, old.chunks if old else []))
    digest = tape.digest()
    return digest, tape.size, Chunks(chunks, tape.quick_blocks())


def _follow(tape: _Tape, old: list[ContentChunk]) -> Iterator[ContentChunk]:
    at = 0  # the old chunk that comes next if the change is as long as the bytes that it replaced
    last = 0  # the old chunk behind the last one that was found
    patience = 0  # the number of chunks until the next search
    is_even = all(chunk.size == _CHUNK for chunk in old[:-1])
    blocks = b"".join(chunk.digest for chunk in old) if is_even else b""
    while ahead := tape.ahead(_CHUNK):
        if blocks and (num_equal := _skip_same(tape, blocks, at)):
            yield from old[at : at + num_equal]
            at = last = at + num_equal
            patience = 0
        elif at < len(old) and (chunk := _next_if(tape, old[at])) is not None:
            yield chunk
            at = last = at + 1
            patience = 0
        elif at + 1 < len(old) and _is_overwritten(tape, old[at], old[at + 1]):
            yield from _even(tape, old[at].size)
            at = last = at + 1
        else:
            distance = -1
            if patience <= 0 and last < len(old):
                distance, index = _find_again(tape, old, last)
                patience = _PATIENCE
            if distance >= 0:
                yield from _even(tape, distance)
                at = last = index
            else:
                yield from _even(tape, len(ahead))
                at += 1
                patience -= 1


def _skip_same(tape: _Tape, blocks: bytes, at: int) -> int:
    """Consume as many of the stream's next blocks as have the digests that ``blocks`` has from
    index ``at`` on; return their number.

    Only blocks that are in the buffer already are compared. A few equal blocks may be left for the
    next call.
    """
    digests, start = tape.blocks_ahead(), at * DIGEST_BYTES
    size = min(len(digests), len(blocks) - start)
    while size > 0 and digests[:size] != blocks[start : start + size]:
        size = size // 2 // DIGEST_BYTES * DIGEST_BYTES
    size = max(size, 0)
    tape.skip(size // DIGEST_BYTES * BLOCK_BYTES)
    return size // DIGEST_BYTES


def _next_if(tape: _Tape, chunk: ContentChunk) -> ContentChunk | None:
    """Consume and return ``chunk`` if the stream continues with it; else return None."""
    ahead = tape.ahead(chunk.size)
    if len(ahead) < chunk.size or tape.digest_of(ahead) != chunk.digest:
        return None
    tape.skip(chunk.size)
    return chunk


def _is_overwritten(tape: _Tape, chunk: ContentChunk, following: ContentChunk) -> bool:
    """Return whether the stream has other bytes in place of ``chunk``, and directly behind them the
    chunk ``following``, so that only ``chunk`` was overwritten.
    """
    ahead = tape.ahead(chunk.size + following.size)[chunk.size :]
    return len(ahead) == following.size and digest_bytes(ahead) == following.digest


def _find_again(tape: _Tape, old: list[ContentChunk], at: int) -> tuple[int, int]:
    """Return where the stream continues with an old chunk, as (distance in bytes, index of the
    chunk).

    Only a few chunks of ``old``, from the index ``at`` on, are searched for; the nearest one
    counts. The distance is -1 if none of them is nearby.
    """
    best = (-1, at)
    for index in (at + step for step in _STEPS if at + step < len(old)):
        distance = tape.find(old[index].anchor)
        if distance >= 0 and (best[0] < 0 or distance < best[0]):
            ahead = tape.ahead(distance + old[index].size)[distance:]
            if digest_bytes(ahead) == old[index].digest:
                best = (distance, index)
    return best


def _even(tape: _Tape, size: int) -> Iterator[ContentChunk]:
    while size > 0:
        piece = tape.ahead(min(size, _CHUNK))
        yield ContentChunk(len(piece), tape.digest_of(piece), bytes(piece[:_ANCHOR]))
        tape.skip(len(piece))
        size -= len(piece)
