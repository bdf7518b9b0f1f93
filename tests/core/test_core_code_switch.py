"""The switch of code: all or none, whoever dies or is late, and at whatever moment."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.core.code_switch.effects import Do, Effects, answer_to
from monarch.core.code_switch.participant import Participant
from monarch.core.code_switch.table import (
    COORDINATOR,
    PARTICIPANT,
    PROPOSAL,
    IllegalEvent,
    ParticipantState,
    ProposalState,
    Vote,
)
from monarch.wire.message import Order, SwitchOrder
from tests.core.switch_world import Chances, World

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
    assert world.author.machine.state is ProposalState.SWITCHED


@settings(max_examples=300, deadline=None)
@given(SEEDS, st.integers(1, 4), st.integers(0, 3))
def test_whoever_dies_each_program_ends_on_one_generation(
    seed: int, num_owners: int, num_procs: int
) -> None:
    world = World(seed, num_owners, num_procs)
    world.run()
    world.check_end()


@pytest.mark.parametrize("num_owners", [1, 2, 3])
def test_whichever_party_dies_at_any_event_each_program_ends_on_one_generation(
    num_owners: int,
) -> None:
    """Author, host, owner or proc; and then, a little later, another one."""
    chances, then = Chances(death=0.0, interrupt=0.0), random.Random(num_owners)
    how: Any = {"num_procs": 1, "num_hosts": num_owners + 1, "chances": chances}
    quiet = World(num_owners, num_owners, **how)
    num_events, parties = quiet.run(), quiet.mortals()
    for event in range(num_events):
        for party in parties:
            later = event + then.randint(1, 25)
            deaths = {event: party, later: then.choice(parties)}
            world = World(num_owners, num_owners, **how)
            try:
                world.run(deaths)
                world.check_end()
            except AssertionError as error:
                raise AssertionError(f"where {deaths}: {error}") from error


@settings(max_examples=500, deadline=None)
@given(SEEDS, st.integers(1, 4), st.sampled_from([0.02, 0.04]), st.sampled_from([0.05, 0.25]))
def test_where_many_die_each_program_ends_on_one_generation(
    seed: int, num_owners: int, death: float, refuse_patch: float
) -> None:
    chances = Chances(death=death, refuse_patch=refuse_patch)
    world = World(seed, num_owners, num_procs=1, chances=chances)
    world.run()
    world.check_end()


def test_an_owner_that_was_told_to_switch_goes_on_without_its_author() -> None:
    world = World(1, num_owners=1, num_hosts=1, chances=CALM)
    [owner], [host] = world.owners, world.hosts
    world.author.carry_out(world.author.machine.begin())
    while owner.leading is None:
        world.step()
    world.kill("author")
    while world.step():
        world.check()
    world.check_end()
    assert (owner.runs, host.files) == ("new", "new")


def test_an_owner_that_was_not_told_to_switch_reverts_when_its_author_dies() -> None:
    world = World(1, num_owners=1, num_hosts=1, chances=CALM)
    [owner], [host] = world.owners, world.hosts
    world.author.carry_out(world.author.machine.begin())
    while owner.machine.state is not ParticipantState.PREPARED:
        world.step()
    world.links.clear()
    world.kill("author")
    while world.step():
        world.check()
    world.check_end()
    assert (owner.runs, host.files, host.is_staged) == ("old", "old", False)


def give(
    machine: Participant, kind: SwitchOrder, sender: str = "author", token: int = 1
) -> Effects:
    return machine.on(Order(kind, 7, attempt=1, seconds=None), sender, token, 0.0)


def finish(machine: Participant, effects: Effects) -> None:
    """All the work that these, and what comes of them, ask for is done."""
    for effect in effects:
        if isinstance(effect, Do) and effect.number:
            finish(machine, machine.did(effect.number, Vote.YES, 0.0))


def test_an_owner_that_leads_its_own_switch_obeys_its_author_no_longer() -> None:
    machine = Participant(list, is_root=True, uid="owner")
    finish(machine, give(machine, SwitchOrder.PREPARE))
    with pytest.raises(IllegalEvent, match="by 'another'"):
        give(machine, SwitchOrder.SWITCH, "another")
    assert give(machine, SwitchOrder.SWITCH) == answer_to(1)
    assert machine.author_gone("author", 0.0) == []
    assert give(machine, SwitchOrder.REVERT) == answer_to(1)
    with pytest.raises(IllegalEvent, match="in the middle of"):
        give(machine, SwitchOrder.FENCE)
    assert not machine.accepts("author")
    for kind in (SwitchOrder.FENCE, SwitchOrder.HALT, SwitchOrder.PATCH, SwitchOrder.GO):
        finish(machine, give(machine, kind, "owner"))
    assert machine.is_idle
    assert give(machine, SwitchOrder.REVERT) == answer_to(1), "it is over"
    assert machine.is_idle


def test_a_new_generation_that_is_prepared_after_one_was_reverted_is_its_own() -> None:
    machine = Participant(lambda: ["proc"], is_root=True)
    [_, own] = give(machine, SwitchOrder.PREPARE, "")
    give(machine, SwitchOrder.REVERT, "")
    assert isinstance(own, Do)
    [ask, do] = give(machine, SwitchOrder.REVERT, "", 3)[1:]
    for number in (ask.asked[0][0], do.number):  # type: ignore[union-attr]
        machine.did(number, Vote.YES, 0.0)
        machine.voted(number, Vote.YES, 0.0)
    assert machine.state is ParticipantState.IDLE
    machine.on(Order(SwitchOrder.PREPARE, 8), "", 4, 0.0)
    assert machine.generation == 8


def test_what_a_participant_does_not_expect_raises() -> None:
    machine = Participant(list, is_root=True)
    with pytest.raises(IllegalEvent, match="patch"):
        give(machine, SwitchOrder.PATCH, "")
    give(machine, SwitchOrder.PREPARE)
    with pytest.raises(IllegalEvent, match="by 'another'"):
        give(machine, SwitchOrder.HALT, "another")
    with pytest.raises(IllegalEvent, match="'preparing' has no 'halt'"):
        give(machine, SwitchOrder.HALT)
    with pytest.raises(IllegalEvent, match="nothing was asked"):
        machine.did(99, Vote.YES, 0.0)


def tables_as_markdown() -> Iterator[str]:
    tables: dict[str, Mapping[Any, Mapping[Any, Any]]] = {
        "author": PROPOSAL, "coordinator": COORDINATOR, "participant": PARTICIPANT,
    }  # fmt: skip
    for name, table in tables.items():
        lines = [f"| {name} is | what happens | it is then |", "| --- | --- | --- |"]
        for state, row in table.items():
            by_next: dict[Enum, list[str]] = {}
            for event, following in row.items():
                kind = f"*{event.value}*" if isinstance(event, SwitchOrder) else event.value
                by_next.setdefault(following, []).append(kind)
            lines += [
                f"| {state.value} | {'; '.join(events)} | {following.value} |"
                for following, events in by_next.items()
            ] or [f"| {state.value} | | |"]
        yield "\n".join(lines) + "\n"


def test_the_tables_are_in_the_documentation() -> None:
    page = Path(__file__).resolve().parents[2] / "docs/reload_details.md"
    for table in tables_as_markdown():
        assert table in page.read_text(), f"write this there:\n{table}"
