"""A barrier for tasks: each waits until all have arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable


class Barrier:
    """Groups that arrive, its ``members``, go on together; a lost one is not waited for."""

    def __init__(self, expected: Iterable[int]) -> None:
        self.members: set[int] = set()
        self._missing = set(expected)
        self._all_there = asyncio.Event()
        if not self._missing:
            self._all_there.set()

    def arrive(self, number: int) -> None:
        """Count one arrival; also one that was not waited for."""
        self.members.add(number)
        self._is_found(number)

    def lose(self, number: int) -> None:
        """Stop waiting for a group that is gone, or will not come."""
        self.members.discard(number)
        self._is_found(number)

    def _is_found(self, number: int) -> None:
        self._missing.discard(number)
        if not self._missing:
            self._all_there.set()

    def give_way(self) -> None:
        """Another barrier takes its place: what waits here waits there, by ``meet_at_barrier``."""
        self._all_there.set()

    async def wait(self, timeout: float | None = None) -> None:
        """Until all are there; after ``timeout`` seconds the waiting ends for all."""
        try:
            await asyncio.wait_for(self._all_there.wait(), timeout)
        except asyncio.TimeoutError:
            self._all_there.set()


async def meet_at_barrier(
    current: Callable[[], Barrier], number: int, timeout: float | None = None
) -> None:
    """Arrive at the barrier that is current, and wait for the others: there, or at the barriers
    that take its place meanwhile."""
    here: Barrier | None = None
    while here is not current():
        here = current()
        here.arrive(number)
        await here.wait(timeout)


async def wait_for_all(tasks: Iterable[asyncio.Future[None]], beside: asyncio.Future[None]) -> None:
    """Wait for all ``tasks``; raises what one of them, or ``beside``, raises first."""
    waiting = set(tasks)
    while waiting:
        done, _ = await asyncio.wait({*waiting, beside}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        waiting -= done
