"""Touched: what a watcher tells of the paths that may have changed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["Touched"]


class Touched(frozenset[Path]):
    """Paths that were touched, which are all that may have changed, with what is in them.

    ``moves``: folders among them that only got another name, as (old, new), in order. What is in
    them need not be looked at, but for paths that are named here themselves. A set that is made
    from this and others knows no moves, and has everything looked at.
    """

    moves: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, paths: Iterable[str], moves: Iterable[tuple[str, str]]) -> Touched:
        touched = cls(map(Path, paths))
        touched.moves = tuple(moves)
        return touched
