"""Touched: the paths that may have changed, as a watcher reports them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path


class Touched(AbstractSet[Path]):
    """The paths that were touched since an earlier look. A path stands also for the content of the
    folder at it; nothing else has changed.

    ``names``: the same paths as text, which is faster than to make a ``Path`` of each. ``moves``:
    folders among them that were only renamed, as (old, new), in order. A path inside a moved folder
    was touched only if it is in the set itself. Sets made from this set, such as a union, have no
    ``moves``, and so all of their paths are looked at.
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
