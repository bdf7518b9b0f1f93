"""Whatever is killed, and whenever: replica groups end together, soon, and nobody waits for ever.

The controller is the real one; its processes are objects, and its clock jumps. A walk counts the
moments of an undisturbed run, at which a call begins or ends, and kills something at each.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'monarch-loop[ft]'")

from monarch_recipes.replicas.groups import StoppedUnsaved
from monarch_recipes.replicas.meeting import awaited_to_join, awaited_to_step, num_met
from monarch_recipes.replicas.messages import Failed, Finished
from tests.recipes.ft_world import World

VICTIMS = ("group 0", "group 1", "lighthouse", "all")
LAST_STEP = 4
SOON_SECONDS = 40.0
"""Of the fake clock, with a back-off of some seconds after several deaths; a step that nobody makes
is found after 180."""


def undisturbed(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(monkeypatch)
    assert isinstance(world.run(), Finished)
    assert world.rows == [(step, 2) for step in range(1, LAST_STEP + 1)]
    return world


def check(world: World, did: object) -> None:
    try:
        ended = world.run()
    except AssertionError as error:
        raise AssertionError(f"{did}: {error}") from None
    assert isinstance(ended, Finished), f"{did}: {ended}"
    assert ended.outcome.step == LAST_STEP, did
    assert len(set(ended.outcome.fingerprints.values())) == 1, did
    assert len(ended.outcome.fingerprints) == 2, f"{did}: one did not come to the end"
    assert world.loop.now < SOON_SECONDS, f"{did}: it took {world.loop.now:.0f} s"
    if "group" in str(did) and "died" in world.kinds():
        assert {"respawned", "adopted", "started"} & set(world.kinds()), did


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_kill_at_any_moment_is_over_soon_and_all_end_together(
    monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    for moment in range(1, undisturbed(monkeypatch).num_moments + 1):
        world = World(monkeypatch)
        world.at[moment] = lambda world=world: world.kill(victim)
        check(world, f"{victim} at {moment}")


def test_nobody_begins_alone_where_another_dies_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once it stood still for 180 s, trained alone then, and never ended."""
    for victim in ("group 0", "group 1", "all"):
        for moment in range(1, 30):
            world = World(monkeypatch)
            is_early: list[bool] = []

            def kill(world: World = world, victim: str = victim) -> None:
                members = [one for one in world.trainers.values() if one.is_member]
                is_early.append(len(members) < 2)  # noqa: B023 - run within the loop
                world.kill(victim)

            world.at[moment] = kill
            check(world, f"{victim} at {moment}")
            if is_early[0]:
                assert all(num == 2 for _, num in world.rows), f"{victim} at {moment}"


@pytest.mark.long
def test_several_kills_at_any_moments_are_over_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(32)
    num = undisturbed(monkeypatch).num_moments
    for _ in range(300):
        world = World(monkeypatch)
        moments = sorted(dice.sample(range(1, 2 * num), dice.choice((2, 3, 4))))
        did = [(moment, dice.choice(VICTIMS)) for moment in moments]
        for moment, victim in did:
            world.at[moment] = lambda world=world, victim=victim: world.kill(victim)
        check(world, did)


def test_a_stop_at_any_moment_ends_the_run_soon_and_saves_what_was_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for moment in range(1, undisturbed(monkeypatch).num_moments + 1):
        world = World(monkeypatch)
        world.at[moment] = world.stop
        check_stopped(world, f"stopped at {moment}")


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_stop_while_a_death_is_not_over_ends_the_run_soon(
    monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    num = undisturbed(monkeypatch).num_moments
    moments = list(itertools.product(range(4, num, 5), (1, 2, 4, 8, 16)))
    for moment, later in moments:
        world = World(monkeypatch)
        world.at[moment] = lambda world=world: world.kill(victim)
        world.at[moment + later] = world.stop
        check_stopped(world, f"{victim} at {moment}, stopped {later} later")


def check_stopped(world: World, did: str) -> None:
    ended = world.run()
    if world.stopped_at is None:
        return
    seconds = world.loop.now - world.stopped_at
    assert seconds < 5.0, f"{did}: it took {seconds:.1f} s"
    if isinstance(ended, Finished):
        # Whoever made the last step had saved it, or was there to do so.
        assert max(world.saved) == ended.outcome.step, did
        return
    assert isinstance(ended, Failed), did
    assert isinstance(ended.error, StoppedUnsaved), f"{did}: {ended.error}"
    newest, saved = world.controller.event_log.newest_step, max(world.saved, default=0)
    if newest > saved:
        assert "lost, as no group was left" in str(ended.error), did
        alive = [one for one in world.trainers.values() if one.process.is_alive]
        assert all(one.step_made <= saved for one in alive), f"{did}: it could have been saved"


def test_what_groups_wait_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    found: list[str] = []

    async def look() -> None:
        while True:
            await asyncio.sleep(0.1)
            for text in world.controller.waits(world.loop.now):
                if text not in found:
                    found.append(text)

    act: Callable[[], None] = lambda: world.kill("group 1")  # noqa: E731
    world.at[20] = act
    world.loop.create_task(look())
    world.run()
    assert "group 0 is being started" in found
    assert "group 1 is being started again, for the 1st time" in found


@dataclass
class State:
    number: int
    is_given_up: bool = False
    is_set_up: bool = False
    joined: int | None = None
    is_training: bool = False
    has_finished: bool = False


def test_all_begin_together_and_later_nobody_is_waited_for_who_is_away() -> None:
    one, other, third = State(0, is_set_up=True), State(1), State(2, is_given_up=True)
    groups = [one, other, third]
    assert awaited_to_join(groups) == [1]
    other.is_set_up, one.joined = True, 0
    assert awaited_to_join(groups) == []
    assert awaited_to_step(groups, 0) == [1]
    other.is_set_up = False  # It has died: the other, which has come further, waits for its return.
    assert awaited_to_step(groups, 0) == [1]
    other.is_set_up, other.joined = True, 0
    assert awaited_to_step(groups, 0) == []
    assert num_met(groups, 0) == 2
    one.is_training = True
    other.joined, other.is_set_up = None, False
    assert awaited_to_join(groups) == awaited_to_step(groups, 0) == []
    # A lighthouse that is new knows nobody: those that train meet there.
    other.is_training = True
    assert awaited_to_step(groups, 1) == [0, 1]
