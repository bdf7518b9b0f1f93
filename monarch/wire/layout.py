"""The layout of a message's pieces in one stretch of memory: one after another, aligned."""

from __future__ import annotations

from collections.abc import Sequence

_STRIDE = 8 * 2**20
_ALIGNMENT = 64
"""Of a cache line, and enough for any vector instruction that works on an array."""


def total_size(sizes: Sequence[int]) -> int:
    """Return how many bytes pieces of these sizes need."""
    return sum(map(_padded, sizes))


def split(memory: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    """Return the places in ``memory`` for pieces of these sizes."""
    places = []
    start = 0
    for size in sizes:
        places.append(memory[start : start + size])
        start += _padded(size)
    return places


def write(pieces: Sequence[memoryview], memory: memoryview) -> None:
    """Copy ``pieces`` to their places in ``memory``."""
    for piece, region in zip(pieces, split(memory, [len(p) for p in pieces]), strict=True):
        copy(piece, region)


def copy(piece: memoryview, place: memoryview) -> None:
    """Copy bytes in steps of 8 MiB, because no other thread runs Python code during one step."""
    for start in range(0, len(piece), _STRIDE):
        place[start : start + _STRIDE] = piece[start : start + _STRIDE]


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
