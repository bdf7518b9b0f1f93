"""How long a coordinator lets a fence stand, what it does when not all come to it, and in which
order an author asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch.core.code_switch.coordinator import HOST_ORDERS, Coordinator, Effect, Pause
from monarch.core.code_switch.proposal import NOBODY, AskOwner, BringBack, Proposal, Request
from monarch.core.code_switch.table import (
    CoordinatorState,
    IllegalEvent,
    ProposalState,
    Vote,
)
from monarch.wire.message import SwitchOrder

Answer = Callable[[SwitchOrder, int], Vote | None]
"""What processes say to an order; yes, unless something else. By the order, and its attempt."""
TRACES = Path(__file__).with_name("switch_traces.txt").read_text().splitlines()
"""Switches of one owner, as an author drove them before owners did: orders and votes."""


class Owner:
    """Drives a switch, until all are to be switched or to go back."""

    def __init__(self) -> None:
        self.asked: list[tuple[SwitchOrder, float | None]] = []
        self.slept: list[float] = []

    def reach(self, answer: Answer) -> CoordinatorState:
        machine = Coordinator(7, lambda longest: longest)
        effect = machine.begin()
        while effect is not None:
            if isinstance(effect, Pause):
                self.slept.append(effect.seconds)
                effect = machine.woke()
                continue
            if effect.kind in HOST_ORDERS:
                break
            self.asked.append((effect.kind, effect.seconds))
            effect = machine.voted(answer(effect.kind, effect.attempt) or Vote.YES)
        return machine.state

    def seconds(self, order: SwitchOrder) -> list[float | None]:
        return [seconds for asked, seconds in self.asked if asked is order]


@pytest.fixture
def owner() -> Owner:
    return Owner()


def test_where_all_come_at_once_there_is_one_fence_and_one_halt(owner: Owner) -> None:
    assert owner.reach(lambda order, attempt: None) is CoordinatorState.SHOWING
    assert owner.asked == [(SwitchOrder.FENCE, 0.3), (SwitchOrder.HALT, 0.5)]
    assert not owner.slept


def test_while_somebody_is_busy_each_fence_stands_longer_and_so_does_the_pause(
    owner: Owner,
) -> None:
    def answer(order: SwitchOrder, attempt: int) -> Vote | None:
        return (
            Vote.LATE if order in (SwitchOrder.FENCE, SwitchOrder.LIFT) and attempt < 12 else None
        )

    assert owner.reach(answer) is CoordinatorState.SHOWING
    stood, paused = owner.seconds(SwitchOrder.FENCE), owner.seconds(SwitchOrder.LIFT)
    assert stood[:4] == [0.3, 0.6, 1.2, 2.4]
    assert stood[8:] == [76.8] * 4, "there is an end to it, beyond a long message of a minute"
    assert paused == stood[1:], "half of the time all go on"
    assert not owner.slept


def test_where_they_waited_for_one_another_only_the_pause_grows(owner: Owner) -> None:
    owner.reach(
        lambda order, attempt: Vote.LATE if order is SwitchOrder.FENCE and attempt < 12 else None
    )
    assert set(owner.seconds(SwitchOrder.FENCE)) == {0.3}
    assert owner.slept == sorted(owner.slept)
    assert owner.slept[0] == 0.04
    assert owner.slept[-1] == 2.0


def test_a_halt_that_is_late_is_tried_again_behind_another_fence_and_then_refused(
    owner: Owner,
) -> None:
    stage = owner.reach(lambda order, attempt: Vote.LATE if order is SwitchOrder.HALT else None)
    assert stage is CoordinatorState.UNDOING
    assert owner.seconds(SwitchOrder.HALT) == [0.5, 1.0, 2.0, 4.0]
    assert len(owner.seconds(SwitchOrder.FENCE)) == 4
    assert len(owner.seconds(SwitchOrder.LIFT)) == 3


@pytest.mark.parametrize("order", [SwitchOrder.FENCE, SwitchOrder.HALT])
def test_a_refusal_ends_it(owner: Owner, order: SwitchOrder) -> None:
    assert (
        owner.reach(lambda asked, attempt: Vote.NO if asked is order else None)
        is CoordinatorState.UNDOING
    )
    assert not owner.seconds(SwitchOrder.LIFT)


def test_ctrl_c_takes_back_a_push_until_the_order_to_go_is_sent() -> None:
    for is_sent in (False, True):
        machine = Coordinator(7, lambda longest: longest)
        machine.begin()
        while machine.state is not CoordinatorState.RELEASING:
            machine.voted(Vote.YES)
        if is_sent:
            machine.releases()
        assert machine.is_decided is is_sent
    machine.voted(Vote.NO)
    assert machine.state is CoordinatorState.COMMITTED


def test_what_nobody_expects_raises() -> None:
    machine = Coordinator(7, lambda longest: longest)
    with pytest.raises(IllegalEvent, match="'idle' has no 'the pause is over'"):
        machine.woke()


def test_an_owner_that_drives_asks_what_an_author_asked() -> None:
    for trace in TRACES:
        _replay(trace)


def _replay(trace: str) -> None:
    told, _, end = trace.partition(" = ")
    events = iter(told.split())
    proposal = Proposal(1)
    assert proposal.begin() == AskOwner(0, SwitchOrder.PREPARE)
    request = _after(proposal, next(events), "prepare")
    if request == AskOwner(NOBODY, SwitchOrder.SHOW_FILES):  # There are none.
        assert proposal.voted(Vote.YES) == AskOwner(0, SwitchOrder.SWITCH)
        state = _driven(events)
        assert state.value == end.partition(",")[0]
        is_done = state is CoordinatorState.COMMITTED
        request = proposal.voted(Vote.YES if is_done else Vote.NO)
        assert request == (None if is_done else AskOwner(NOBODY, SwitchOrder.TAKE_BACK_FILES))
    else:
        while request is not None:
            assert isinstance(request, AskOwner)
            request = _after(proposal, next(events), request.order.value)
        assert end.startswith("aborted")
        assert proposal.state is ProposalState.CALLED_OFF
    assert not [*events]


def _after(proposal: Proposal, event: str, asked: str) -> Request | None:
    if event == "ctrl-c":
        return proposal.interrupted()
    order, _, vote = event.partition(":")
    assert order == asked.replace(" ", "-")
    return proposal.voted(Vote(vote))


def _driven(events: Iterator[str]) -> CoordinatorState:
    machine = Coordinator(7, lambda longest: longest)
    effect = machine.begin()
    while effect is not None:
        event = next(events)
        if event == "ctrl-c":
            effect = machine.interrupted()
            continue
        order, _, vote = event.partition(":")
        assert order == _written(effect)
        effect = machine.woke() if isinstance(effect, Pause) else machine.voted(Vote(vote))
    return machine.state


def _written(effect: Effect) -> str:
    if isinstance(effect, Pause):
        return "pause"
    attempt = ""
    if effect.kind in (SwitchOrder.FENCE, SwitchOrder.LIFT):
        attempt = f"#{effect.attempt}"
    seconds = f"({effect.seconds:g}s)" if effect.seconds else ""
    return f"{effect.kind.value.replace(' ', '-')}{attempt}{seconds}"


def test_all_say_why_they_cannot_prepare_and_all_revert() -> None:
    proposal = Proposal(3)
    assert proposal.begin() == AskOwner(0, SwitchOrder.PREPARE)
    assert proposal.voted(Vote.NO) == AskOwner(1, SwitchOrder.PREPARE)
    assert proposal.voted(Vote.YES) == AskOwner(2, SwitchOrder.PREPARE)
    asked = [proposal.voted(Vote.NO)]
    while asked[-1] is not None:
        asked.append(proposal.voted(Vote.YES))
    reverts = [AskOwner(owner, SwitchOrder.REVERT) for owner in range(3)]
    assert asked == [AskOwner(NOBODY, SwitchOrder.DROP_FILES), *reverts, None]


@pytest.mark.parametrize("vote", [Vote.NO, Vote.GONE])
def test_who_has_switched_is_brought_back_where_the_next_one_cannot(vote: Vote) -> None:
    proposal = Proposal(3)
    proposal.begin()
    for _ in range(5):  # Three prepare, hosts on which nothing runs show files, the first switches.
        request = proposal.voted(Vote.YES)
    assert request == AskOwner(1, SwitchOrder.SWITCH)
    asked = [proposal.voted(vote)]
    while asked[-1] is not None:
        asked.append(proposal.voted(Vote.YES))
    lost = [AskOwner(1, SwitchOrder.TAKE_BACK_FILES)] if vote is Vote.GONE else []
    assert asked == [
        *lost, AskOwner(NOBODY, SwitchOrder.TAKE_BACK_FILES), AskOwner(2, SwitchOrder.REVERT),
        BringBack(0), None,
    ]  # fmt: skip
    assert proposal.state is ProposalState.CALLED_OFF


def test_ctrl_c_waits_for_the_owner_that_switches_and_keeps_the_others_from_it() -> None:
    proposal = Proposal(2)
    proposal.begin()
    for _ in range(3):
        proposal.voted(Vote.YES)
    assert proposal.switching == 0
    assert proposal.interrupted() is None
    assert proposal.voted(Vote.YES) == AskOwner(NOBODY, SwitchOrder.TAKE_BACK_FILES)
