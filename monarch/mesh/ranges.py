"""Ranks as people write them."""

from __future__ import annotations

from collections.abc import Iterable


def ranges_of(ranks: Iterable[int]) -> list[str]:
    """Return ranks as ranges: 0, 1, 2, 3 and 7 become ``0-3`` and ``7``."""
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return [str(low) if low == high else f"{low}-{high}" for low, high in parts]


def ranges_in_words(ranks: Iterable[int]) -> str:
    """Return ranks as text: ``0-3, 7``."""
    return ", ".join(ranges_of(ranks))
