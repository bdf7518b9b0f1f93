"""Groups wait for each other where they begin together, and for nobody who will not come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from monarch_recipes.replicas.barrier import Barrier, meet_at_barrier


class Meeting:
    """A place whose barrier may be another one meanwhile, and who has come through it."""

    def __init__(self, *expected: int) -> None:
        self.barrier = Barrier(expected)
        self.through: list[int] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def come(self, *numbers: int) -> None:
        for number in numbers:
            self._tasks.append(asyncio.ensure_future(self._come(number)))
        await self.settle()

    async def _come(self, number: int) -> None:
        await meet_at_barrier(lambda: self.barrier, number)
        self.through.append(number)

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    def replace(self, expected: Iterable[int]) -> None:
        before, self.barrier = self.barrier, Barrier(expected)
        before.give_way()


def meet(story: Callable[[], object]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


def test_all_go_on_when_the_last_has_come() -> None:
    async def story() -> None:
        meeting = Meeting(0, 1)
        await meeting.come(0)
        assert meeting.through == []
        await meeting.come(1)
        assert sorted(meeting.through) == [0, 1]
        assert meeting.barrier.members == {0, 1}
        await meeting.come(2)  # Who comes late is not held up.
        assert meeting.through[-1] == 2

    meet(story)


def test_who_is_lost_is_not_waited_for_and_no_member() -> None:
    async def story() -> None:
        meeting = Meeting(0, 1)
        await meeting.come(0)
        meeting.barrier.lose(1)
        await meeting.settle()
        assert meeting.through == [0]
        meeting.barrier.lose(0)
        assert meeting.barrier.members == set()

    meet(story)


def test_who_waits_goes_on_waiting_where_all_begin_anew() -> None:
    """The first is back while the second has not come yet, and is lost then: both are to begin."""

    async def story() -> None:
        meeting = Meeting(0, 1)
        await meeting.come(0)
        meeting.replace([0, 1])
        await meeting.settle()
        assert meeting.through == []
        assert meeting.barrier.members == {0}
        await meeting.come(1)
        assert sorted(meeting.through) == [0, 1]

    meet(story)


def test_patience_ends() -> None:
    async def story() -> None:
        barrier = Barrier([0, 1])
        await meet_at_barrier(lambda: barrier, 0, timeout=0.01)
        await meet_at_barrier(lambda: barrier, 2)  # Nobody waits for 1 any more.

    meet(story)
