"""The switch of code: all or none, whoever dies or is late, and at whatever moment."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.core.code_switch.effects import Do, Effects, Reason, answer_to
from monarch.core.code_switch.participant import Participant
from monarch.core.code_switch.table import (
    CoordinatorState,
    IllegalEvent,
    ParticipantState,
    Vote,
    as_markdown,
    successor_of,
)
from tests.core.switch_world import Chances, Member, World

SEEDS = st.integers(0, 2**32 - 1)
CALM = Chances(*[0.0] * len(Chances._fields))


@settings(max_examples=300, deadline=None)
@given(SEEDS, st.integers(1, 3), st.integers(0, 3))
def test_all_switch_or_none(seed: int, num_owners: int, num_procs: int) -> None:
    world = World(seed, num_owners, num_procs, chances=Chances(death=0.0))
    world.run()
    world.check_end()


def test_where_nobody_objects_all_run_the_new_code() -> None:
    world = World(2, num_owners=3, chances=CALM)
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


@pytest.mark.parametrize("num_owners", [2, 3, 4])
def test_of_several_owners_none_ends_apart_whichever_party_dies_at_any_event(
    num_owners: int,
) -> None:
    """And then, a little later, another one: often the owner that has taken the author's place."""
    chances, then = Chances(death=0.0, interrupt=0.0), random.Random(num_owners)
    quiet = World(num_owners, num_owners, num_procs=1, chances=chances)
    num_events, parties = quiet.run(), quiet.mortals()
    for event in range(num_events):
        for party in parties:
            later = event + then.randint(1, 25)
            deaths = {event: party, later: then.choice(parties)}
            world = World(num_owners, num_owners, num_procs=1, chances=chances)
            try:
                world.run(deaths)
                world.check_end()
            except AssertionError as error:
                raise AssertionError(f"where {deaths}: {error}") from error


@settings(max_examples=500, deadline=None)
@given(SEEDS, st.integers(2, 4), st.sampled_from([0.02, 0.04]), st.sampled_from([0.05, 0.25]))
def test_where_many_die_the_owners_that_live_end_on_one_generation(
    seed: int, num_owners: int, death: float, refuse_patch: float
) -> None:
    chances = Chances(death=death, refuse_patch=refuse_patch)
    world = World(seed, num_owners, num_procs=1, chances=chances)
    world.run()
    world.check_end()


def test_a_late_order_of_a_dead_successor_is_not_obeyed_once_the_next_one_has_asked() -> None:
    """The first owner says to go, and dies; so does the only host that had the new files, for which
    the second owner has all go back. Then the first one's word arrives at the third."""
    world = World(1, num_owners=3, num_procs=0, num_hosts=1, chances=CALM)
    first, second, third = world.owners
    [host] = world.hosts
    world.author.carry_out(world.author.machine.begin())
    world.settle(lambda: world.author.machine.state is CoordinatorState.PATCHING)
    world.kill("author")
    world.settle(lambda: leads(first, CoordinatorState.RELEASING))
    late = world.links.pop((first.name, third.name))
    world.links.pop((first.name, second.name))
    world.kill(first.name)
    world.kill(host.name)
    world.settle(lambda: leads(second, CoordinatorState.REVERTING))
    assert third.machine.state is ParticipantState.PATCHED, "it has yet to hear of that"
    for act, _ in late:
        act()
    assert third.machine.state is ParticipantState.PATCHED
    world.settle()
    world.check_end()
    assert {second.runs, third.runs} == {"old"}


def test_no_host_obeys_a_dead_successor_once_the_next_one_has_asked() -> None:
    """The first owner cannot run the new code, has the hosts take the files back, and dies. The
    second, whose code can, has all go on. Then the first one's word arrives at a host."""
    world = World(1, num_owners=3, num_procs=0, chances=CALM)
    first, second, third = world.owners
    host, other = world.hosts
    world.author.carry_out(world.author.machine.begin())
    world.settle(lambda: world.author.machine.state is CoordinatorState.PATCHING)
    first.patch_vote = Vote.NO
    world.kill("author")
    world.settle(lambda: leads(first, CoordinatorState.UNDOING))
    late = world.links.pop((first.name, host.name))
    world.links.pop((first.name, other.name))
    world.kill(first.name)
    world.settle(lambda: leads(second, CoordinatorState.RELEASING))
    assert late, "to take the files back"
    for act, _ in late:
        act()
    world.settle()
    world.check_end()
    assert {second.runs, third.runs, host.files, other.files} == {"new"}


def leads(owner: Member, state: CoordinatorState) -> bool:
    return owner.recovery is not None and owner.recovery.machine.state is state


def prepared(machine: Participant) -> None:
    """It takes part in generation 7 of ``author``, and has no procs."""
    finish(machine, machine.prepare(1, "author", 7, 0.0))


def finish(machine: Participant, effects: Effects) -> None:
    """All the work that these, and what comes of them, ask for is done."""
    for effect in effects:
        if isinstance(effect, Do) and effect.number:
            finish(machine, machine.did(effect.number, Vote.YES, 0.0))


def test_an_owner_that_is_asked_how_far_it_is_obeys_the_latest_that_asked() -> None:
    machine = Participant(list, is_root=True)
    prepared(machine)
    first, second = successor_of("author", 1), successor_of("author", 2)
    assert machine.inquire(2, second, 7) == answer_to(2, Reason.NOT_HALTED)
    for late in ("author", first):
        assert machine.inquire(3, first, 7) == answer_to(3, Reason.NOT_HALTED)
        with pytest.raises(IllegalEvent, match="in the middle of"):
            machine.raise_fence(3, late, 7, 1, 0.0, None)
        assert machine.go(4, late, 7) == answer_to(4)
    assert machine.state is ParticipantState.PREPARED


def test_an_owner_that_has_gone_says_so_and_no_successor_takes_it_back() -> None:
    machine = Participant(list, is_root=True)
    prepared(machine)
    finish(machine, machine.raise_fence(2, "author", 7, 1, 0.0, None))
    finish(machine, machine.halt(3, "author", 7, 0.5, 0.0))
    finish(machine, machine.patch(4, "author", 7, 0.0))
    successor = successor_of("author", 1)
    assert machine.inquire(5, successor, 7) == answer_to(5)
    assert machine.patch(6, successor, 7, 0.0) == answer_to(6), "it has done so already"
    finish(machine, machine.go(7, successor, 7))
    assert machine.state is ParticipantState.IDLE
    assert machine.inquire(8, successor_of("author", 2), 7) == answer_to(8, Reason.WENT)
    assert machine.revert(9, successor, 7, 0.0) == answer_to(9)


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
