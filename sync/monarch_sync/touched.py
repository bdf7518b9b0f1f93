"""Touched: the paths that may have changed, as a watcher reports them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path


class Touched(AbstractSet[Path]):
    """Paths that were touched since an earlier look. Nothing has changed besides these paths, and
    the content of folders among them.

    ``names``: the same paths as text. To make a ``Path`` of each takes longer than to look at it.
    ``moves``: folders among them that were only renamed, as (old, new), in order; paths in a moved
    folder need no look, unless they are in the set themselves. A union or another set made of this
    one has no moves, so all of its paths are looked at.
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
