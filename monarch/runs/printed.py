"""What the ranks of a run have printed, read from the run's folder, also while it grows."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

__all__ = ["Line", "Printed"]

_RANK = re.compile(r"rank(\d+)$")


class Line(NamedTuple):
    """``who`` printed it: ``rank0``, or ``eval-rank0`` for the procs of another mesh."""

    who: str
    text: str


class Printed:
    """Of one run; ``ranks`` are those wanted, all if none are given."""

    def __init__(self, folder: Path, ranks: Collection[int] = ()) -> None:
        self._folder = folder
        self._ranks = frozenset(ranks)
        self._offsets: dict[Path, int] = {}

    def names(self) -> list[str]:
        """Who has printed anything, in the order of their ranks."""
        return [path.stem for path in self._files()]

    def take(self, *, is_over: bool = False) -> list[Line]:
        """The lines since the last time. One that has no end yet is left for later, unless it
        ``is_over`` and none will come."""
        return [line for path in self._files() for line in self._new_in(path, is_over)]

    def _files(self) -> list[Path]:
        found = []
        for path in self._folder.glob("*.log"):
            rank = _RANK.search(path.stem)
            if rank and (not self._ranks or int(rank[1]) in self._ranks):
                found.append(((path.stem[: rank.start()], int(rank[1])), path))
        return [path for _, path in sorted(found)]

    def _new_in(self, path: Path, is_over: bool) -> list[Line]:
        offset = self._offsets.get(path, 0)
        try:
            with open(path, "rb") as file:
                file.seek(offset)
                data = file.read()
        except OSError:
            return []  # It was taken away.
        end = len(data) if is_over else data.rfind(b"\n") + 1
        self._offsets[path] = offset + end
        text = data[:end].decode(errors="replace")
        # Not splitlines: that also breaks at what is no end of a line to whoever printed it.
        lines = text.removesuffix("\n").split("\n") if text else []
        return [Line(path.stem, line) for line in lines]
