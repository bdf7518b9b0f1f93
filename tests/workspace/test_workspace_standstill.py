"""How long an author lets a fence stand, and what it does when not all come to it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.runtime.workspace.pushing import standstill
from monarch.runtime.workspace.pushing.standstill import Standstill
from monarch.runtime.workspace.reload_plan import RefusedFile, ReloadOutcome

Answer = Callable[[str, int], str]
"""What an owner says to a step: "late", "refused" or nothing. By the step, and its attempt."""


class FakeOwner:
    """Says what it is told to, and keeps what it was asked."""

    def __init__(self, name: str, asked: list[tuple[Any, ...]], answer: Answer) -> None:
        self._name = name
        self._asked = asked
        self._answer = answer
        self._attempt = 0

    def _say(self, step: str, *how: Any) -> ReloadOutcome:
        self._asked.append((self._name, step, *how))
        said = self._answer(step, self._attempt)
        file = [RefusedFile(self._name, f"{said} at {step}")]
        return ReloadOutcome(
            refused=file if said == "refused" else [], late=file if said == "late" else []
        )

    def fence(
        self, generation: int, attempt: int, seconds: float, *, is_held: bool = False
    ) -> ReloadOutcome:
        self._attempt = attempt
        return self._say("fence", seconds, is_held)

    def lift(self, generation: int, attempt: int, seconds: float) -> ReloadOutcome:
        assert attempt == self._attempt
        return self._say("lift", seconds)

    def halt(self, generation: int, seconds: float) -> ReloadOutcome:
        return self._say("halt", seconds)


class Author:
    """Reaches a standstill of fake owners."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.slept: list[float] = []

    def reach(self, *answers: Answer) -> ReloadOutcome:
        owners: Any = [FakeOwner(str(n), self.asked, answer) for n, answer in enumerate(answers)]
        return Standstill(7, owners).reach()

    def seconds(self, step: str) -> list[float]:
        return [how[0] for _, asked, *how in self.asked if asked == step]


@pytest.fixture
def author(monkeypatch: pytest.MonkeyPatch) -> Author:
    made = Author()
    monkeypatch.setattr(standstill, "time", SimpleNamespace(sleep=made.slept.append))
    longest = SimpleNamespace(uniform=lambda low, high: high)
    monkeypatch.setattr(standstill, "random", longest)
    return made


def test_where_all_come_at_once_there_is_one_fence_and_one_halt(author: Author) -> None:
    outcome = author.reach(lambda step, attempt: "")
    assert not outcome.refused
    assert author.asked == [("0", "fence", 0.3, False), ("0", "halt", 0.5)]
    assert not author.slept


def test_while_somebody_is_busy_each_fence_stands_longer_and_so_does_the_pause(
    author: Author,
) -> None:
    outcome = author.reach(
        lambda step, attempt: "late" if step in ("fence", "lift") and attempt < 12 else ""
    )
    assert not outcome.refused
    stood, paused = author.seconds("fence"), author.seconds("lift")
    assert stood[:4] == [0.3, 0.6, 1.2, 2.4]
    assert stood[8:] == [76.8] * 4, "there is an end to it, beyond a long message of a minute"
    assert paused == stood[1:], "half of the time all go on"
    assert not author.slept


def test_where_they_waited_for_one_another_only_the_pause_grows(author: Author) -> None:
    author.reach(lambda step, attempt: "late" if step == "fence" and attempt < 12 else "")
    assert set(author.seconds("fence")) == {0.3}
    assert author.slept == sorted(author.slept)
    assert author.slept[0] == 0.04
    assert author.slept[-1] == 2.0


def test_a_halt_that_is_late_is_tried_again_behind_another_fence_and_then_refused(
    author: Author,
) -> None:
    outcome = author.reach(lambda step, attempt: "late" if step == "halt" else "")
    assert [refused.message for refused in outcome.refused] == ["late at halt"]
    assert author.seconds("halt") == [0.5, 1.0, 2.0, 4.0]
    assert len(author.seconds("fence")) == 4
    assert len(author.seconds("lift")) == 3


@pytest.mark.parametrize("step", ["fence", "halt"])
def test_a_refusal_ends_it(author: Author, step: str) -> None:
    outcome = author.reach(lambda asked, attempt: "refused" if asked == step else "")
    assert [refused.message for refused in outcome.refused] == [f"refused at {step}"]
    assert not author.seconds("lift")


def test_all_owners_go_on_before_anybody_is_waited_for(author: Author) -> None:
    outcome = author.reach(
        lambda step, attempt: "",
        lambda step, attempt: "late" if step == "fence" and attempt == 1 else "",
    )
    assert not outcome.refused
    assert author.asked == [
        ("0", "fence", 0.3, False), ("1", "fence", 0.3, True),
        ("1", "lift", 0.0), ("0", "lift", 0.6), ("1", "lift", 0.6),
        ("0", "fence", 0.3, False), ("1", "fence", 0.3, True),
        ("0", "halt", 0.5), ("1", "halt", 0.5),
    ]  # fmt: skip
