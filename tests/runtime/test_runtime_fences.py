"""Fences that are given up: who stands goes on, and who comes later passes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from monarch.core.mailbox import Delivery, Mailbox, Reached
from monarch.runtime.context import ActorRecord
from monarch.runtime.procs.fences import Fences


class Cell:
    """An actor that takes out of its mailbox when it is told to."""

    def __init__(self, name: str, cells: Cells) -> None:
        self.record: Any = ActorRecord(
            uid=name,
            name=name,
            class_name="",
            rank=0,
            labels=(),
            sizes=(),
            owner=None,
            owner_actor="",
            ancestors=(),
        )  # type: ignore[arg-type]
        self.method = ""
        self.held_at = ""
        self.done: list[Any] = []
        self._mailbox = Mailbox()
        self._cells = cells

    @property
    def is_holding(self) -> bool:
        return self._mailbox.is_holding

    def deliver(self, event: Any) -> None:
        self._mailbox.feed(event)

    def run(self, num_items: int = 100) -> None:
        """Take out what there is, so much of it at most."""
        for _ in range(num_items):
            item = self._mailbox.next()
            if item is None:
                return
            if isinstance(item, Reached):
                self._cells.fences.reached(self, item)
            else:
                self.done.append(item.work)


class Cells:
    """Two actors, and what is sent to both of them by the client."""

    def __init__(self) -> None:
        self.reached: list[int] = []
        self.halted: list[int] = []
        self.fences = Fences(lambda: [self.one, self.two], threading.Lock())
        self.one, self.two = Cell("one", self), Cell("two", self)

    def send(self, work: str) -> None:
        for cell in (self.one, self.two):
            cell.deliver(Delivery("client", work))

    def fence(self) -> int:
        numbers: list[int] = []
        numbers.append(self.fences.raise_for("client", lambda: self.reached.append(numbers[0])))
        return numbers[0]

    def halt(self, number: int) -> None:
        self.fences.halt(number, lambda: self.halted.append(number))

    def run(self) -> None:
        self.one.run()
        self.two.run()


@pytest.fixture
def cells() -> Cells:
    return Cells()


def test_who_stands_at_a_fence_that_is_given_up_goes_on_in_order(cells: Cells) -> None:
    cells.send("a")
    number = cells.fence()
    cells.send("b")
    cells.one.run()
    assert cells.one.done == ["a"]
    assert cells.fences.holds_up_any()
    assert not cells.reached
    cells.fences.give_up(number)
    cells.send("c")
    cells.run()
    assert cells.one.done == cells.two.done == ["a", "b", "c"]
    assert not cells.fences.holds_up_any()


def test_a_fence_that_was_given_up_says_when_all_are_past_it(cells: Cells) -> None:
    number = cells.fence()
    cells.one.run()
    cells.fences.give_up(number)
    assert not cells.reached
    cells.two.run()
    assert cells.reached == [number]


def test_stale_fences_stop_nobody_and_do_not_count(cells: Cells) -> None:
    stale = []
    for work in ("a", "b", "c"):
        stale.append(cells.fence())
        cells.one.run()
        cells.send(work)
        cells.fences.give_up(stale[-1])
    last = cells.fence()
    cells.send("behind")
    cells.one.run()
    assert cells.one.done == ["a", "b", "c"]
    assert [cell.record.uid for cell in cells.fences.waiting_for(last)] == ["two"]
    cells.two.run(4)
    assert cells.reached == [], "those before the last say nothing any more"
    cells.two.run()
    assert cells.two.done == ["a", "b", "c"]
    assert cells.reached == [last]
    cells.fences.lift(last)
    cells.run()
    assert cells.one.done == cells.two.done == ["a", "b", "c", "behind"]


def test_a_halt_ends_with_its_fence(cells: Cells) -> None:
    number = cells.fence()
    cells.run()
    cells.send("b")
    cells.halt(number)
    cells.one.run()
    assert not cells.halted
    cells.fences.give_up(number)
    cells.run()
    assert cells.one.done == cells.two.done == ["b"]
    assert not cells.halted
    again = cells.fence()
    cells.run()
    cells.halt(again)
    cells.run()
    assert cells.halted == [again]


def test_a_new_actor_does_not_wait_at_a_fence_that_was_given_up(cells: Cells) -> None:
    number = cells.fence()
    cells.fences.give_up(number)
    new = Cell("new", cells)
    cells.fences.begins(new, "client")
    new.deliver(Delivery("client", "a"))
    new.run()
    assert new.done == ["a"]
    cells.run()
    assert cells.reached == [number]


def test_who_begins_to_wait_for_the_switch_is_waited_for_no_more() -> None:
    cells = Cells()
    number = cells.fence()
    cells.one.run()
    cells.fences.exempt("two")
    assert cells.reached == [number]
    cells.fences.halt(number, lambda: cells.halted.append(number))
    cells.one.run()
    assert cells.halted == [number]
    cells.fences.lift(number)
    cells.two.run()
    assert not cells.two.is_holding
