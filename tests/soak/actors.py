"""Actors of the soak test: they keep books on what reached them."""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any

from monarch.actor import Actor, MeshFailure, Port, context, endpoint, this_host


class Ledger(Actor):
    """Each sender numbers what it sends to each rank, from 1 on; a gap, a double or a change of
    order is noted."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}
        self.complaints: list[str] = []
        self.rank = context().actor_instance.rank.rank

    def _take(self, sender: str, numbers: dict[int, int]) -> int:
        number, last = numbers[self.rank], self.last.get(sender, 0)
        if number != last + 1:
            self.complaints.append(f"rank {self.rank}: {number} of {sender} came after {last}")
        self.last[sender] = number
        return number

    @endpoint
    def note(self, sender: str, numbers: dict[int, int], load: Any = None) -> int:
        return self._take(sender, numbers)

    @endpoint
    def slowly(self, sender: str, numbers: dict[int, int], seconds: float) -> int:
        time.sleep(seconds)
        return self._take(sender, numbers)

    @endpoint
    def books(self) -> tuple[dict[str, int], list[str]]:
        return self.last, self.complaints

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def digest(self, data: Any) -> tuple[str, Any]:
        return hashlib.blake2b(bytes(data)).hexdigest(), data

    @endpoint
    def count_into(self, port: Port[Any], num: int) -> None:
        for number in range(num):
            port.send((self.rank, number))

    @endpoint
    def fail(self) -> None:
        raise ValueError("on purpose")

    @endpoint
    def wait(self, seconds: float) -> int:
        time.sleep(seconds)
        return self.rank

    @endpoint
    def pass_on(self, other: Any, sender: str, first: dict[int, int], num: int) -> list[int]:
        """Send ``num`` numbered messages to another mesh, some of them as calls."""
        numbers = dict(first)
        for step in range(num):
            # The last one too, so that all have arrived when the caller hears of it.
            if step % 4 == 3 or step == num - 1:
                other.note.call(sender, numbers).get()
            else:
                other.note.broadcast(sender, numbers)
            numbers = {rank: number + 1 for rank, number in numbers.items()}
        return list(numbers.values())


class AsyncLedger(Actor):
    """The same books, kept by coroutines."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}
        self.complaints: list[str] = []
        self.rank = context().actor_instance.rank.rank

    @endpoint
    async def note(self, sender: str, numbers: dict[int, int], load: Any = None) -> int:
        number, last = numbers[self.rank], self.last.get(sender, 0)
        if number != last + 1:
            self.complaints.append(f"rank {self.rank}: {number} of {sender} came after {last}")
        self.last[sender] = number
        return number

    @endpoint
    async def books(self) -> tuple[dict[str, int], list[str]]:
        return self.last, self.complaints


class Boss(Actor):
    """Owns a mesh of its own, and handles what befalls it."""

    def __init__(self) -> None:
        self.workers: Any = None
        self.procs: Any = None
        self.failures: list[str] = []

    @endpoint
    def hire(self, num: int) -> list[int]:
        self.procs = this_host().spawn_procs({"gpus": num}, name="hired")
        self.workers = self.procs.spawn("worker", Ledger)
        pids: list[int] = self.workers.pid.call().get().values()
        return pids

    @endpoint
    def work(self, sender: str, num: int) -> list[str]:
        """Numbered messages to the workers; what their books complain of."""
        ranks = range(len(self.workers))
        for number in range(1, num + 1):
            self.workers.note.broadcast(sender, dict.fromkeys(ranks, number))
        found = []
        for last, complaints in self.workers.books.call().get().values():
            found += complaints
            if last.get(sender) != num:
                found.append(f"{last.get(sender)} of {num} arrived")
        return found

    @endpoint
    def seen(self) -> int:
        return len(self.failures)

    @endpoint
    def dismiss(self) -> None:
        self.procs.stop().get()

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.failures.append(failure.report())
        return True
