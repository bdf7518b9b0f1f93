"""A place where several tasks wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

__all__ = ["Gathering"]


class Gathering:
    """Lets those who arrive go on together; who is lost on the way arrives by being reported."""

    def __init__(self, expected: Iterable[int]) -> None:
        self._missing = set(expected)
        self._all_there = asyncio.Event()
        if not self._missing:
            self._all_there.set()

    def arrive(self, number: int) -> None:
        """One less to wait for; anybody else may arrive too."""
        self._missing.discard(number)
        if not self._missing:
            self._all_there.set()

    async def wait(self, timeout: float | None = None) -> None:
        """Until all are there; after ``timeout`` seconds nobody waits any longer."""
        try:
            await asyncio.wait_for(self._all_there.wait(), timeout)
        except asyncio.TimeoutError:
            self._all_there.set()
