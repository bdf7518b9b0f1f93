"""The switch of code: all or none, whoever dies or is late, and at whatever moment."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.core.code_switch.effects import Do
from monarch.core.code_switch.participant import Participant
from monarch.core.code_switch.table import (
    CoordinatorState,
    IllegalEvent,
    ParticipantState,
    Vote,
    as_markdown,
)
from tests.core.switch_world import Chances, World

SEEDS = st.integers(0, 2**32 - 1)
CALM = Chances(refuse=0.0, refuse_patch=0.0, stuck=0.0, gives_way=0.0, death=0.0, spawn=0.0)


@settings(max_examples=300, deadline=None)
@given(SEEDS, st.integers(1, 3), st.integers(0, 3))
def test_all_switch_or_none(seed: int, num_owners: int, num_procs: int) -> None:
    world = World(seed, num_owners, num_procs, chances=Chances(death=0.0))
    world.run()
    world.check_end()


def test_where_nobody_objects_all_run_the_new_code() -> None:
    world = World(1, num_owners=3, chances=CALM)
    world.run()
    world.check_end()
    assert world.author.machine.state is CoordinatorState.COMMITTED


@settings(max_examples=300, deadline=None)
@given(SEEDS, st.integers(1, 4), st.integers(0, 3))
def test_whoever_dies_the_others_end_on_one_generation(
    seed: int, num_owners: int, num_procs: int
) -> None:
    world = World(seed, num_owners, num_procs)
    world.run()
    world.check_end()


def test_to_go_back_from_what_has_not_begun_says_nothing_of_what_came_before() -> None:
    machine = Participant(lambda: ["proc"], is_root=True)
    [_, own] = machine.prepare(1, "", 7, 0.0)
    machine.revert(2, "", 7, 0.0)
    assert isinstance(own, Do)
    [ask, do] = machine.revert(3, "", 7, 0.0)[1:]
    for number in (ask.asked[0][0], do.number):  # type: ignore[union-attr]
        machine.did(number, Vote.YES, 0.0)
        machine.voted(number, Vote.YES, 0.0)
    assert machine.state is ParticipantState.IDLE
    machine.revert(4, "", 8, 0.0)
    assert machine.generation == 8


def test_what_a_participant_does_not_expect_raises() -> None:
    machine = Participant(list, is_root=True)
    with pytest.raises(IllegalEvent, match="patch"):
        machine.patch(1, "", 7, 0.0)
    machine.prepare(1, "author", 7, 0.0)
    with pytest.raises(IllegalEvent, match="by 'another'"):
        machine.halt(2, "another", 7, 0.5, 0.0)
    with pytest.raises(IllegalEvent, match="'preparing' has no 'halt'"):
        machine.halt(3, "author", 7, 0.5, 0.0)
    with pytest.raises(IllegalEvent, match="nothing was asked"):
        machine.did(99, Vote.YES, 0.0)


def test_the_tables_are_in_the_documentation() -> None:
    page = Path(__file__).resolve().parents[2] / "docs/reload.md"
    assert as_markdown() in page.read_text(), "print as_markdown() of core.code_switch.table there"
