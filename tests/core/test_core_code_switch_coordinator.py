"""How long a coordinator lets a fence stand, and what it does when not all come to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from monarch.core.code_switch.coordinator import HOSTS, Coordinator, Pause
from monarch.core.code_switch.table import CoordinatorState, IllegalEvent, SwitchOrder, Vote

Answer = Callable[[SwitchOrder, int], Vote | None]
"""What an owner says to an order; yes, unless something else. By the order, and its attempt."""


class Author:
    """Drives a switch of fake owners, until all are to be switched or to go back."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.slept: list[float] = []

    def reach(self, *answers: Answer) -> CoordinatorState:
        machine = Coordinator(len(answers), lambda longest: longest)
        effects = [*machine.begin()]
        while effects:
            effect = effects.pop(0)
            if isinstance(effect, Pause):
                self.slept.append(effect.seconds)
                effects += machine.woke()
                continue
            if effect.party == HOSTS:
                return machine.state
            order, party = effect.order, effect.party
            if order is SwitchOrder.FENCE:
                self.asked.append((party, order, effect.seconds, effect.is_held))
            elif order is not SwitchOrder.PREPARE:
                self.asked.append((party, order, effect.seconds))
            effects += machine.voted(
                effect.number, answers[party](order, effect.attempt) or Vote.YES
            )
        return machine.state

    def seconds(self, order: SwitchOrder) -> list[float]:
        return [how[0] for _, asked, *how in self.asked if asked is order]


@pytest.fixture
def author() -> Author:
    return Author()


def test_where_all_come_at_once_there_is_one_fence_and_one_halt(author: Author) -> None:
    assert author.reach(lambda order, attempt: None) is CoordinatorState.SHOWING
    assert author.asked == [(0, SwitchOrder.FENCE, 0.3, False), (0, SwitchOrder.HALT, 0.5)]
    assert not author.slept


def test_while_somebody_is_busy_each_fence_stands_longer_and_so_does_the_pause(
    author: Author,
) -> None:
    def answer(order: SwitchOrder, attempt: int) -> Vote | None:
        return (
            Vote.LATE if order in (SwitchOrder.FENCE, SwitchOrder.LIFT) and attempt < 12 else None
        )

    assert author.reach(answer) is CoordinatorState.SHOWING
    stood, paused = author.seconds(SwitchOrder.FENCE), author.seconds(SwitchOrder.LIFT)
    assert stood[:4] == [0.3, 0.6, 1.2, 2.4]
    assert stood[8:] == [76.8] * 4, "there is an end to it, beyond a long message of a minute"
    assert paused == stood[1:], "half of the time all go on"
    assert not author.slept


def test_where_they_waited_for_one_another_only_the_pause_grows(author: Author) -> None:
    author.reach(
        lambda order, attempt: Vote.LATE if order is SwitchOrder.FENCE and attempt < 12 else None
    )
    assert set(author.seconds(SwitchOrder.FENCE)) == {0.3}
    assert author.slept == sorted(author.slept)
    assert author.slept[0] == 0.04
    assert author.slept[-1] == 2.0


def test_a_halt_that_is_late_is_tried_again_behind_another_fence_and_then_refused(
    author: Author,
) -> None:
    stage = author.reach(lambda order, attempt: Vote.LATE if order is SwitchOrder.HALT else None)
    assert stage is CoordinatorState.UNDOING
    assert author.seconds(SwitchOrder.HALT) == [0.5, 1.0, 2.0, 4.0]
    assert len(author.seconds(SwitchOrder.FENCE)) == 4
    assert len(author.seconds(SwitchOrder.LIFT)) == 3


@pytest.mark.parametrize("order", [SwitchOrder.FENCE, SwitchOrder.HALT])
def test_a_refusal_ends_it(author: Author, order: SwitchOrder) -> None:
    assert (
        author.reach(lambda asked, attempt: Vote.NO if asked is order else None)
        is CoordinatorState.UNDOING
    )
    assert not author.seconds(SwitchOrder.LIFT)


def test_all_owners_go_on_before_anybody_is_waited_for(author: Author) -> None:
    stage = author.reach(
        lambda order, attempt: None,
        lambda order, attempt: Vote.LATE if order is SwitchOrder.FENCE and attempt == 1 else None,
    )
    assert stage is CoordinatorState.SHOWING
    fences = [(0, SwitchOrder.FENCE, 0.3, False), (1, SwitchOrder.FENCE, 0.3, True)]
    assert author.asked == [
        *fences,
        (1, SwitchOrder.LIFT, 0.0), (0, SwitchOrder.LIFT, 0.6), (1, SwitchOrder.LIFT, 0.6),
        *fences,
        (0, SwitchOrder.HALT, 0.5), (1, SwitchOrder.HALT, 0.5),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("votes", "then"),
    [
        ([Vote.YES, Vote.WENT, Vote.GONE], CoordinatorState.RELEASING),
        ([Vote.WENT, Vote.LATE, Vote.YES], CoordinatorState.RELEASING),
        ([Vote.YES, Vote.LATE, Vote.YES], CoordinatorState.DROPPING),
        ([Vote.YES, Vote.GONE, Vote.YES], CoordinatorState.INSPECTING),
    ],
)
def test_a_successor_does_what_any_owner_knows_to_be_decided(
    votes: list[Vote], then: CoordinatorState
) -> None:
    machine = Coordinator(3, lambda longest: longest)
    asked = [effect for effect in machine.recover() if not isinstance(effect, Pause)]
    assert [effect.order for effect in asked] == [SwitchOrder.INQUIRE] * 3
    for effect, vote in zip(asked, votes, strict=True):
        machine.voted(effect.number, vote)
    assert machine.state is then


def test_ctrl_c_takes_back_a_push_until_the_first_order_to_go_is_sent() -> None:
    for is_sent in (False, True):
        machine = Coordinator(1, lambda longest: longest)
        effects = [*machine.begin()]
        while machine.state is not CoordinatorState.RELEASING:
            [effect] = effects
            assert not isinstance(effect, Pause)
            effects = [*machine.voted(effect.number, Vote.YES)]
        if is_sent:
            machine.releases()
        machine.interrupted()
        assert (machine.state is CoordinatorState.UNDOING) is not is_sent


def test_what_nobody_expects_raises() -> None:
    machine = Coordinator(1, lambda longest: longest)
    with pytest.raises(IllegalEvent, match="'idle' has no 'the pause is over'"):
        machine.woke()
    with pytest.raises(IllegalEvent, match="nobody was asked number 1"):
        machine.voted(1, Vote.YES)
