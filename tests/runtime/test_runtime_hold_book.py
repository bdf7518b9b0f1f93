"""When people are told of held calls, and what is kept of those whose process has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch.errors import MeshFailure
from monarch.runtime.debugger.hold_book import HoldBook
from monarch.runtime.links.network import Gone
from monarch.wire.hold import HoldNote
from monarch.wire.message import HoldsAsked, HoldsChanged


class Timer:
    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when, self.action = when, action
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Node:
    """A node whose clock the test moves; it is its own loop. ``told`` is what people have read."""

    def __init__(self) -> None:
        self.loop = self
        self.on_gone: list[Callable[[str, Gone], None]] = []
        self.failures: dict[str, MeshFailure] = {}
        self.answers: list[Any] = []
        self.told: list[str] = []
        self._handlers: dict[type[Any], Callable[[Any], None]] = {}
        self._now = 0.0
        self._timers: list[Timer] = []
        self.book: Any = HoldBook(self)  # type: ignore[arg-type]
        self.book.tell = self.told.append
        self.book.together_seconds = 10.0

    def on(self, kind: type[Any], handler: Callable[[Any], None]) -> None:
        self._handlers[kind] = handler

    def get(self, message: Any) -> None:
        self._handlers[type(message)](message)

    def answer(self, order: Any, answer: Any) -> None:
        self.answers.append(answer)

    def address_of(self, uid: str) -> str:
        return uid

    def failure_of(self, uid: str) -> MeshFailure | None:
        return self.failures.get(uid)

    def call_soon(self, action: Callable[[], None]) -> None:
        action()

    def call_later(self, seconds: float, action: Callable[[], None]) -> Timer:
        self._timers.append(Timer(self._now + seconds, action))
        return self._timers[-1]

    def time(self) -> float:
        return self._now

    def move_to(self, now: float) -> None:
        self._now = now
        due = [timer for timer in self._timers if timer.when <= now]
        self._timers = [timer for timer in self._timers if timer.when > now]
        for timer in due:
            if not timer.is_cancelled:
                timer.action()

    def holds(self, rank: int, *ids: str) -> None:
        """A rank of three holds these calls from now on, and no others."""
        notes = tuple(
            HoldNote(
                id=hold, actor="stepper", rank=rank, labels=("gpus",), sizes=(3,), mesh="m",
                proc=f"p{rank}", host="here", pid=rank, method="step", reason="breakpoint()",
                file="train.py", function="step", line=7, since=0.0,
            )
            for hold in ids
        )  # fmt: skip
        self.get(HoldsChanged(proc=f"p{rank}", holds=notes))


def test_calls_that_are_held_soon_after_one_another_are_told_together() -> None:
    node = Node()
    node.holds(0, "a")
    node.move_to(9.0)
    node.holds(1, "b")
    assert node.told == []
    node.move_to(10.0)
    (sentence,) = node.told
    assert sentence.startswith("stepper 0-1 are held at breakpoint(), train.py:7")


def test_a_report_that_was_made_early_does_not_cut_the_next_one_short() -> None:
    node = Node()
    for rank in range(3):
        node.holds(rank, f"first {rank}")
    assert node.told[0].startswith("stepper 0-2 are held"), "no other rank can come"
    for rank in range(3):
        node.holds(rank)
    node.move_to(9.0)
    node.holds(0, "second 0")
    node.move_to(10.0)
    node.holds(1, "second 1")
    assert not node.told[-1].startswith("stepper"), "the next report still waits"
    node.move_to(19.0)
    assert node.told[-1].startswith("stepper 0-1 are held")


def test_a_call_that_went_on_before_it_was_told_does_not_cut_the_next_report_short() -> None:
    node = Node()
    node.holds(0, "first")
    node.holds(0)
    node.move_to(9.0)
    node.holds(1, "second")
    node.move_to(10.0)
    node.holds(2, "third")
    assert node.told == []
    node.move_to(19.0)
    (sentence,) = node.told
    assert sentence.startswith("stepper 1-2 are held")


def test_a_call_that_is_held_again_within_two_seconds_was_never_over_for_people() -> None:
    """As between two commands of a debugger, at whatever time the second one comes."""
    node = Node()
    node.holds(0, "a")
    node.move_to(10.0)
    node.holds(0)
    node.move_to(11.0)
    node.holds(0, "a")
    node.move_to(11.9)
    node.holds(0)
    node.move_to(12.1)
    assert len(node.told) == 1
    node.move_to(14.0)
    assert "no call is held any longer" in node.told[-1]


def test_calls_of_a_lost_host_are_kept_as_lost_and_those_of_stopped_procs_are_not() -> None:
    node = Node()
    for rank in range(3):
        node.holds(rank, f"{rank}")
    node.failures["p0"] = MeshFailure("procs", (0,), "its host gpu1 was lost: no answer")
    node.failures["p1"] = MeshFailure("procs", (1,), "it was stopped", expected=True)
    for rank in range(3):
        for forget in node.on_gone:
            forget(f"p{rank}", Gone.DOWN)
    node.get(HoldsAsked())
    (calls,) = node.answers
    assert calls.holds == ()
    assert [(lost.hold.id, lost.reason) for lost in calls.lost] == [
        ("0", "its host gpu1 was lost: no answer")
    ]
