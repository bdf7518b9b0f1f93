"""Delta: a new content, told as pieces of an old one and what is new in between.

A piece is (offset, size) in the old content, or bytes. No signature has to travel, because the
author knows what the host holds: of a small file the old content, of a large one its chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from monarch_sync.chunks import Chunks
from monarch_sync.errors import BadMessage

__all__ = ["Piece", "apply", "between", "between_chunks", "decode", "encode"]

Piece = tuple[int, int] | bytes
Reader = Callable[[int, int], bytes]

_decoder = msgspec.msgpack.Decoder(list[Piece])


def encode(pieces: Iterable[Piece]) -> bytes:
    return msgspec.msgpack.encode(list(pieces))


def decode(data: bytes | bytearray | memoryview, old_size: int, new_size: int) -> list[Piece]:
    """The pieces in `data`. Raises `BadMessage` where one lies outside the old content, or where
    together they do not have the size of the new one."""
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
    """The new content."""
    view = memoryview(old)
    return b"".join(p if isinstance(p, bytes) else view[p[0] : p[0] + p[1]] for p in pieces)


def between(old: bytes, new: bytes) -> list[Piece]:
    """What turns `old` into `new`: what they begin and end with, and lines found again."""
    head = _common_head(old, new)
    tail = _common_tail(old, new, min(len(old), len(new)) - head)
    middle = _by_lines(old[head : len(old) - tail], new[head : len(new) - tail], head)
    return _joined([(0, head), *middle, (len(old) - tail, tail)])


def between_chunks(old: Chunks, new: Chunks, read: Reader) -> list[Piece]:
    """The same for large files, by their chunks; `read(offset, size)` gives bytes of the new."""
    places, at = old.places()
    pieces: list[Piece] = []
    offset = following = 0
    for chunk in new.chunks:
        # A content may stand in many places: best the next, so that pieces become long.
        is_next = at.get(following) == chunk.digest
        place = following if is_next else places.get(chunk.digest)
        following = (offset if place is None else place) + chunk.size
        pieces.append((place, chunk.size) if place is not None else read(offset, chunk.size))
        offset += chunk.size
    return _joined(pieces)


def _by_lines(old: bytes, new: bytes, at: int) -> list[Piece]:
    """Lines of `new` that `old` has somewhere; `at`: where `old` lies in the whole."""
    if not old or not new:
        return [new]
    places: dict[bytes, int] = {}
    for line in old.splitlines(keepends=True):
        places.setdefault(line, at)
        at += len(line)
    return [
        (places[line], len(line)) if line in places else line
        for line in new.splitlines(keepends=True)
    ]


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Neighbours in one; an empty piece is none."""
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


def _common_head(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_tail(one: bytes, other: bytes, limit: int) -> int:
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if one[len(one) - middle : len(one) - low] == other[len(other) - middle : len(other) - low]:
            low = middle
        else:
            high = middle - 1
    return low
