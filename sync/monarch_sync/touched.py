"""Touched: the paths that may have changed, as a watcher names them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path


class Touched(AbstractSet[Path]):
    """Paths that were touched, which are all that may have changed, with what is in them.

    ``names``: the same as text, which is what they are kept as: to make a ``Path`` of each takes
    longer than to look there. ``moves``: folders among them that only got another name, as
    (old, new), in order. Paths in them need not be looked at, but for those that are named here
    themselves. A set that is made from this and others knows no moves, and has everything looked
    at.
    """

    __slots__ = ("moves", "names")

    def __init__(self, names: Iterable[str], moves: Iterable[tuple[str, str]] = ()) -> None:
        self.names = frozenset(names)
        self.moves = tuple(moves)

    def __contains__(self, path: object) -> bool:
        return isinstance(path, Path) and str(path) in self.names

    def __iter__(self) -> Iterator[Path]:
        return map(Path, self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __hash__(self) -> int:
        return self._hash()

    def __repr__(self) -> str:
        return f"<Touched {sorted(self.names)}>"

    @classmethod
    def _from_iterable(cls, paths: Iterable[Path]) -> frozenset[Path]:  # type: ignore[override]
        return frozenset(paths)
