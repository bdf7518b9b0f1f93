"""A place where several tasks wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

__all__ = ["Gathering", "gather"]


class Gathering:
    """Lets those who arrive, its ``members``, go on together; who is lost is not waited for."""

    def __init__(self, expected: Iterable[int]) -> None:
        self.members: set[int] = set()
        self._missing = set(expected)
        self._all_there = asyncio.Event()
        if not self._missing:
            self._all_there.set()

    def arrive(self, number: int) -> None:
        """One less to wait for; anybody else may arrive too."""
        self.members.add(number)
        self._is_found(number)

    def lose(self, number: int) -> None:
        """It is not there any more, or will not come."""
        self.members.discard(number)
        self._is_found(number)

    def _is_found(self, number: int) -> None:
        self._missing.discard(number)
        if not self._missing:
            self._all_there.set()

    def give_way(self) -> None:
        """Another one takes its place, where those who wait here go on waiting: see ``gather``."""
        self._all_there.set()

    async def wait(self, timeout: float | None = None) -> None:
        """Until all are there; after ``timeout`` seconds nobody waits any longer."""
        try:
            await asyncio.wait_for(self._all_there.wait(), timeout)
        except asyncio.TimeoutError:
            self._all_there.set()


async def gather(
    current: Callable[[], Gathering], number: int, timeout: float | None = None
) -> None:
    """Arrive at the gathering that there is now, and wait for the others: there, or at those that
    take its place meanwhile."""
    here: Gathering | None = None
    while here is not current():
        here = current()
        here.arrive(number)
        await here.wait(timeout)
