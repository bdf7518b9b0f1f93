"""Delta: an edited file as the difference from a content that the host has.

Of a small file the author remembers the old content and sends a zstd frame with the old content as
prefix: some 40 bytes for an edited line. Of a large file it remembers how it was cut (`chunks.py`)
and sends pieces: (offset, size) in the old content, or bytes. Neither way needs a signature of the
old file from the host.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

import msgspec

from monarch_sync.content.chunks import Chunks
from monarch_sync.content.disk import Content
from monarch_sync.errors import BadMessage

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


Piece = tuple[int, int] | bytes
Reader = Callable[[int, int], bytes]

_decoder = msgspec.msgpack.Decoder(list[Piece])
_BULK_LEVEL = 1  # half a gigabyte a second, and source code becomes a third
_LONG_BYTES = 256 << 10
_MAX_WINDOW_LOG = 27  # a frame that wants more memory than 128 MiB for its window is refused


def patch(old: bytes, new: bytes) -> bytes:
    """Return the zstd frame that turns `old` into `new`; `unpatch` applies it."""
    size = len(old) + len(new)
    options: dict[int, int] = {
        zstd.CompressionParameter.compression_level: 3,
        zstd.CompressionParameter.window_log: min(max(size.bit_length(), 10), _MAX_WINDOW_LOG),
        zstd.CompressionParameter.content_size_flag: 0,
        # In a long content, zstd finds the old bytes again only with this.
        zstd.CompressionParameter.enable_long_distance_matching: int(len(old) > _LONG_BYTES),
    }
    return zstd.compress(new, options=options, zstd_dict=_as_prefix(old))


def unpatch(frame: Content, old: bytes, size: int) -> bytes:
    """Return the content that ``frame`` makes of ``old``.

    Raises `BadMessage` if the result does not have exactly ``size`` bytes. It is not decompressed
    beyond that size.
    """
    return _decompress(frame, size, zstd.ZstdDecompressor(_as_prefix(old), _LIMITS))


def compress(content: Content) -> bytes:
    """Return the content as a zstd frame. `decompress` reads it without any other content, unlike a
    frame of `patch`.
    """
    return zstd.compress(content, _BULK_LEVEL)


def decompress(frame: Content, size: int) -> bytes:
    """Return the content of a frame that `compress` made. Raises `BadMessage` unless the content
    has exactly ``size`` bytes.
    """
    return _decompress(frame, size, zstd.ZstdDecompressor(options=_LIMITS))


_LIMITS: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG}


def _decompress(frame: Content, size: int, decompressor: zstd.ZstdDecompressor) -> bytes:
    try:
        content = decompressor.decompress(frame, max_length=size + 1)
        if not decompressor.eof and len(content) == size:
            # The rest of the frame makes no bytes, or too many.
            content += decompressor.decompress(b"", max_length=1)
    except zstd.ZstdError as error:
        raise BadMessage(f"a frame cannot be read: {error}") from None
    if len(content) != size or not decompressor.eof or decompressor.unused_data:
        raise BadMessage(f"a frame does not make the {size} bytes that were announced")
    return content


def _as_prefix(old: bytes) -> tuple[zstd.ZstdDict, int] | None:
    # Less than 8 bytes are no dictionary, for zstd.
    return zstd.ZstdDict(old, is_raw=True).as_prefix if len(old) >= 8 else None


def encode(pieces: Iterable[Piece]) -> bytes:
    return msgspec.msgpack.encode(list(pieces))


def decode(data: bytes | bytearray | memoryview, old_size: int, new_size: int) -> list[Piece]:
    """Return the pieces that are encoded in ``data``. Raises `BadMessage` where a piece lies
    outside the old content, or where the sizes of all pieces do not add up to ``new_size``."""
    try:
        pieces = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise BadMessage(f"a delta cannot be read: {error}") from None
    size = 0
    for piece in pieces:
        if isinstance(piece, bytes):
            size += len(piece)
        elif 0 <= piece[0] <= piece[0] + piece[1] <= old_size:
            size += piece[1]
        else:
            raise BadMessage("a delta copies from outside the old content")
    if size != new_size:
        raise BadMessage(f"a delta makes {size} bytes of {new_size}")
    return pieces


def apply(pieces: Iterable[Piece], old: bytes | memoryview) -> bytes:
    """Return the new content that ``pieces`` make of ``old``."""
    view = memoryview(old)
    return b"".join(p if isinstance(p, bytes) else view[p[0] : p[0] + p[1]] for p in pieces)


def between_chunks(old: Chunks, new: Chunks, read: Reader) -> list[Piece]:
    """Return the pieces that turn one large file into another; `read(offset, size)` gives bytes of
    the new one."""
    first, last = _same_ends(old, new)
    size = sum(chunk.size for chunk in new.chunks[:first])
    pieces: list[Piece] = [(0, size)]
    offset = following = size
    middle = new.chunks[first : len(new.chunks) - last]
    offset_of, digest_at = old.places() if middle else ({}, {})
    for chunk in middle:
        # A chunk may be in many places of the old content. The place right behind the last piece
        # makes the pieces longest.
        continues = digest_at.get(following) == chunk.digest
        source = following if continues else offset_of.get(chunk.digest)
        following = (offset if source is None else source) + chunk.size
        pieces.append((source, chunk.size) if source is not None else read(offset, chunk.size))
        offset += chunk.size
    size = sum(chunk.size for chunk in new.chunks[len(new.chunks) - last :])
    pieces.append((sum(chunk.size for chunk in old.chunks) - size, size))
    return _joined(pieces)


def _same_ends(old: Chunks, new: Chunks) -> tuple[int, int]:
    """Return how many chunks two contents have in common at the start, and how many at the end."""
    num_shared = min(len(old.chunks), len(new.chunks))
    first = last = 0
    while first < num_shared and old.chunks[first] is new.chunks[first]:
        first += 1
    while last < num_shared - first and old.chunks[-1 - last] is new.chunks[-1 - last]:
        last += 1
    return first, last


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Join neighbouring pieces, and drop empty ones."""
    joined: list[Piece] = []
    literal: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            literal.append(piece)
            continue
        if not piece[1]:
            continue
        last = joined[-1] if joined and not any(literal) else None
        if isinstance(last, tuple) and last[0] + last[1] == piece[0]:
            joined[-1] = (last[0], last[1] + piece[1])
            continue
        if any(literal):
            joined.append(b"".join(literal))
        literal = []
        joined.append(piece)
    if any(literal):
        joined.append(b"".join(literal))
    return joined
