"""Tracks which parts of a memory segment are in use.

A new region is the first free part that fits, from the front. So little memory is touched, and
memory that was used lately, which may still be in the processor's caches, is used again first.
Neighbouring free parts are joined.
"""

from __future__ import annotations

from bisect import bisect_left


class Regions:
    """The free and used regions between ``start`` and ``end``; each begins and ends at a multiple
    of ``unit``."""

    def __init__(self, start: int, end: int, unit: int) -> None:
        self._unit = unit
        self._taken: dict[int, int] = {}
        self._free = [(start, end)]

    @property
    def is_unused(self) -> bool:
        return not self._taken

    def take(self, size: int) -> int | None:
        """Reserve a region of at least ``size``; return its offset, or ``None`` if no free part is
        so large."""
        size = max(1, -(-size // self._unit)) * self._unit
        for index, (start, end) in enumerate(self._free):
            if end - start >= size:
                if end - start == size:
                    del self._free[index]
                else:
                    self._free[index] = (start + size, end)
                self._taken[start] = size
                return start
        return None

    def give_back(self, offset: int) -> None:
        """Free the region at ``offset``, which must be reserved."""
        start, end = offset, offset + self._taken.pop(offset)
        index = bisect_left(self._free, (start, end))
        if index < len(self._free) and self._free[index][0] == end:
            end = self._free.pop(index)[1]
        if index > 0 and self._free[index - 1][1] == start:
            index -= 1
            start = self._free.pop(index)[0]
        self._free.insert(index, (start, end))
