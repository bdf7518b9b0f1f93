"""Whatever is killed, and whenever: replica groups end together, soon, and nobody waits for ever.

The controller is the real one; its processes are objects, and its clock jumps. A walk counts the
moments of an undisturbed run, at which a call begins or ends, and kills something at each.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'monarch-loop[ft]'")

from monarch.runs.record.slowness import HOLD, MORE
from monarch.runs.recover.ranks import RunFailed
from monarch_recipes import fault_tolerant
from monarch_recipes.buffers import Buffers
from monarch_recipes.extras import Extras
from monarch_recipes.fault_tolerant import FaultTolerantConfig, ReplicaTrainer
from monarch_recipes.replicas.group import Group
from monarch_recipes.replicas.groups import Groups, StoppedUnsaved
from monarch_recipes.replicas.meeting import awaited_to_join, awaited_to_step, num_met
from monarch_recipes.replicas.membership import SharedUsage
from monarch_recipes.replicas.messages import Failed, Finished, Holds, RunEvent, Seat, TaskError
from monarch_recipes.replicas.torchft_cures import LighthouseGone
from monarch_recipes.tally import Tally
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


@pytest.mark.long_but(1)
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


def check_stopped(world: World, did: str, most_seconds: float = 5.0) -> None:
    ended = world.run()
    if world.stopped_at is None:
        return
    seconds = world.loop.now - world.stopped_at
    assert seconds < most_seconds, f"{did}: it took {seconds:.1f} s"
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
        answering = [one for one in alive if not one.process.is_stuck]
        assert all(one.step_made <= saved for one in answering), f"{did}: it could have been saved"


def with_copies(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch, extras=Extras(shadow_every=1), checkpoint_every=0)


@pytest.mark.long
@pytest.mark.parametrize("victim", ["group 0", "all"])
def test_a_kill_at_any_moment_costs_at_most_the_step_that_was_not_copied_yet(
    monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    world = with_copies(monkeypatch)
    assert isinstance(world.run(), Finished)
    for moment in range(1, world.num_moments + 1):
        world = with_copies(monkeypatch)
        world.at[moment] = lambda world=world: world.kill(victim)
        check(world, f"{victim} at {moment}")
        lost = [one.data["num_steps_lost"] for one in events(world, "rolled_back")]
        assert sum(lost) <= 1, f"{victim} at {moment}: {lost}"
        assert not world.copies, "the memory is let go at the end"


def events(world: World, kind: str) -> list[RunEvent]:
    return [one for one in world.told if isinstance(one, RunEvent) and one.kind == kind]


def test_a_group_that_goes_on_from_memory_is_healed_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only group 1 has left a copy: group 0 begins from nothing, and heals."""
    world = with_copies(monkeypatch)

    def lose() -> None:
        world.copies.pop("0")
        world.kill("all")

    world.when_copied(3, lose)
    assert isinstance(world.run(), Finished)
    assert not events(world, "rolled_back")
    again = {one.data["group"]: one for one in events(world, "respawned")}
    assert again[1].data["step"] == 3
    assert "from the host's memory" in again[1].text
    assert again[0].data["step"] == 0


def test_a_group_that_has_come_apart_leaves_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    world = with_copies(monkeypatch)
    accused: list[dict[str, int]] = []

    def accuse() -> None:
        world.controller.groups.accuse({1: "it is not as the others"})

    lose = Groups.lose

    async def lose_and_look(self: Groups, group: Group, why: str, details: str = "") -> None:
        await lose(self, group, why, details)
        accused.append(dict(world.copies))

    monkeypatch.setattr(Groups, "lose", lose_and_look)
    world.when_copied(2, accuse)
    assert isinstance(world.run(), Finished)
    assert set(accused[0]) == {"0"}


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


NCCL_REFUSES = (
    "NCCL error in: NCCLUtils.cpp:{number}, invalid usage\nLast error:\nDuplicate GPU\n"
    'Traceback (most recent call last):\n  File "manager.py", line 1\nDistBackendError: same'
)


def refusing(world: World, *, from_step: int = 1, times: float = math.inf) -> None:
    """Have each step from there on discarded for one reason, in which only numbers differ."""
    numbers = itertools.count(1)

    def refuse(group: int, step: int) -> str:
        if step < from_step or (number := next(numbers)) > times:
            return ""
        return NCCL_REFUSES.format(number=number)

    world.refuse = refuse


def told_of_discards(world: World) -> list[str]:
    events = (said for said in world.told if isinstance(said, RunEvent))
    return [event.text for event in events if event.kind == "discarded"]


def test_a_step_that_never_works_for_one_reason_ends_the_run_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once it was tried for ever, with a line each time."""
    world = World(monkeypatch)
    refusing(world)
    ended = world.run()
    assert isinstance(ended, Failed)
    assert isinstance(ended.error, RunFailed)
    assert "5 times in a row for the same reason: NCCL error" in str(ended.error)
    assert "Last error: Duplicate GPU. " in str(ended.error), "and not where it came from"
    assert world.loop.now < 15.0
    assert "died" not in world.kinds(), "new processes would have made no difference"
    assert [text.partition(":")[0] for text in told_of_discards(world)] == [
        "group 0 discards its step 1", "group 1 discards its step 1"
    ]  # fmt: skip


def test_a_step_that_works_no_longer_is_tried_in_new_processes_before_the_run_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    refusing(world, from_step=3)
    ended = world.run()
    assert isinstance(ended, Failed)
    assert isinstance(ended.error, RunFailed)
    assert "the same command goes on from /runs/2.pt" in str(ended.error)
    assert sorted(set(world.rows)) == [(1, 2), (2, 2)]
    assert world.kinds().count("respawned") == 2
    assert world.loop.now < SOON_SECONDS


@pytest.mark.parametrize("times", [1, 2, 5, 7])
def test_a_trouble_that_passes_costs_no_process(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    world = World(monkeypatch)
    refusing(world, from_step=3, times=times)
    ended = world.run()
    assert isinstance(ended, Finished)
    assert "died" not in world.kinds()
    texts = told_of_discards(world)
    assert len(texts) <= 4
    if times == 7:
        assert "group 1 has discarded 3 steps in a row for that reason" in texts


def test_what_fails_on_new_code_is_held_for_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.controller.hold.edits.is_edited = lambda generation: True  # type: ignore[method-assign]
    refusing(world)
    world.loop.call_later(30.0, world.stop)
    ended = world.run()
    (held,) = [said for said in world.told if isinstance(said, Holds) and said.failure is not None]
    assert held.failure is not None
    assert "in a row for the same reason: NCCL error" in held.failure.error
    assert isinstance(ended, Failed)
    assert isinstance(ended.error, StoppedUnsaved)


@pytest.mark.parametrize("moment", range(10, 70, 10))
def test_a_stop_while_every_step_is_discarded_ends_the_run_soon(
    monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    monkeypatch.setattr("monarch_recipes.replicas.discards.NUM_ALIKE", 10**9)
    world = World(monkeypatch)
    refusing(world)
    world.at[moment] = world.stop
    check_stopped(world, f"stopped at {moment}")


@pytest.mark.parametrize("later", [0.0, 2.0, 50.0])
def test_a_stop_where_a_lighthouse_of_others_is_gone_ends_the_run_soon(
    monkeypatch: pytest.MonkeyPatch, later: float
) -> None:
    """Nobody is told of its end: groups wait in a quorum, or cannot join."""
    for moment in range(1, undisturbed(monkeypatch).num_moments + 1, 3):
        world = World(monkeypatch, lighthouse="http://there:1")
        world.lighthouse.is_alive = True

        def end(world: World = world) -> None:
            world.lighthouse.is_alive = False
            world.loop.call_later(later, world.stop)

        world.at[moment] = end
        check_stopped(world, f"gone at {moment}, stopped {later:g} s later")


@pytest.mark.parametrize("num_stuck", [1, 2])
def test_a_stop_while_groups_answer_nothing_ends_the_run_soon(
    monkeypatch: pytest.MonkeyPatch, num_stuck: int
) -> None:
    """As in a heal that does not end, or in a call of a driver."""
    for moment in range(1, undisturbed(monkeypatch).num_moments + 1, 3):
        world = World(monkeypatch)

        def stick(world: World = world) -> None:
            for number in list(world.trainers)[:num_stuck]:
                world.trainers[number].process.is_stuck = True
            world.loop.call_later(1.0, world.stop)

        world.at[moment] = stick
        check_stopped(world, f"stuck at {moment}", most_seconds=20.0)


def test_a_group_that_fails_slowly_is_given_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start takes longer to fail than the window of the budget of restarts is long."""
    world = World(monkeypatch, max_restarts=3, restart_window_seconds=1.0)

    monkeypatch.setattr(
        "tests.recipes.ft_world.FakeTrainers.on_join",
        lambda self, meet: self.world.loop.call_later(2.0, self.process.kill),
    )
    ended = world.run()
    assert isinstance(ended, Failed)
    assert "each has used up its restarts" in str(ended.error)
    assert "was killed" in str(ended.error), "why"
    assert world.kinds().count("respawned") == 6


@pytest.mark.parametrize(
    ("gpus", "uses_nccl", "texts"),
    [
        ({0: "a", 1: "b"}, True, []),
        ({0: "a", 1: "a"}, False, ["2 ranks share 1 GPU, which NCCL refuses"]),
        ({0: "a", 1: "cpu"}, False, ["1 of 2 ranks have no GPU"]),
        ({0: "cpu", 1: "cpu"}, False, []),
    ],
)
def test_groups_meet_over_nccl_where_each_process_has_a_gpu_of_its_own(
    monkeypatch: pytest.MonkeyPatch, gpus: dict[int, str], uses_nccl: bool, texts: list[str]
) -> None:
    """Two groups that shared one GPU discarded each step, for ever."""
    world = World(monkeypatch)
    world.gpus = gpus
    world.at[20] = lambda: world.kill("group 1")  # It joins again, and that is not told again.
    assert isinstance(world.run(), Finished)
    assert {by_nccl for _, by_nccl in world.meetings} == {uses_nccl}
    events = (said for said in world.told if isinstance(said, RunEvent))
    told = [event.text for event in events if event.kind == "backend"]
    assert [text.partition(":")[0] for text in told] == texts


def test_a_group_that_comes_back_on_the_gpu_of_another_does_not_break_its_meeting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, num_steps=40, checkpoint_every=10, max_restarts=2)
    world.gpus = {0: "a", 1: "b"}

    def move() -> None:
        world.gpus[1] = "a"
        world.kill("group 1")

    world.at[40] = move
    ended = world.run()
    assert isinstance(ended, Finished)
    assert "group 0" not in {one.victim for one in ended.outcome.report.incidents}
    assert "given_up" in world.kinds() or "adopted" in world.kinds()
    assert {by_nccl for _, by_nccl in world.meetings} == {True}


def test_a_person_may_hold_a_slow_step_on_new_code_or_give_it_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    hold = world.controller.hold
    monkeypatch.setattr(hold.edits, "is_edited", lambda generation: True)
    monkeypatch.setattr(hold.edits, "is_new", lambda activity, generation: True)
    hold.config = dataclasses.replace(hold.config, edit_patience_seconds=30.0)
    before = hold.patience()
    hold.slow("group 0, step 1, takes 30 s so far")
    hold.answer_slow(MORE)
    after = hold.patience()
    assert before is not None
    assert after is not None
    assert after.told == 4 * before.told
    texts = [said.text for said in world.told if isinstance(said, RunEvent)]
    assert "k holds it, + gives it more time" in texts[0]
    assert texts[1].startswith("a step has ")

    async def interrupt(groups: Groups, group: Group, seconds: float) -> None:
        raise TaskError(f"{group.name}, interrupted", "it has not ended")

    async def press() -> None:
        for trainers in world.trainers.values():
            trainers.process.is_stuck = True
        hold.answer_slow(HOLD)

    monkeypatch.setattr(Groups, "interrupt", interrupt)
    world.at[20] = lambda: world.loop.create_task(press())
    world.loop.call_later(30.0, world.stop)
    ended = world.run()
    assert isinstance(ended, Failed)
    held = [said for said in world.told if isinstance(said, Holds) and said.failure is not None]
    assert "it has not ended" in held[0].failure.error  # type: ignore[union-attr]
    assert not hold.is_given_up, "the next step is another"


def test_buffers_are_as_before_a_step_that_the_lighthouse_has_cut_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The step is made again: a batch that counted twice in BatchNorm's statistics would have
    groups come apart."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    trainer: Any = ReplicaTrainer.__new__(ReplicaTrainer)
    trainer.config = FaultTolerantConfig()
    trainer.seat = Seat(group=0, rank=0, num_groups=2, num_ranks=1, slot=0)
    trainer.device, trainer.model, trainer.buffers = torch.device("cpu"), model, Buffers(model)
    trainer.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer.samples = SimpleNamespace(numbers_of=lambda batch: [0])

    def forward(batch: int) -> tuple[torch.Tensor, Tally]:
        tally, loss = Tally(), model(torch.rand(4, 3)).sum()
        tally.add("loss", (loss, 4.0), 4)
        return loss, tally

    monkeypatch.setattr(trainer, "forward", forward)
    monkeypatch.setattr(trainer, "backward", lambda loss: loss.backward())
    monkeypatch.setattr(trainer, "check_all_averaged", lambda: None)
    monkeypatch.setattr(trainer, "learning_rate_of", lambda step: 0.1)
    monkeypatch.setattr(fault_tolerant, "context", lambda: SimpleNamespace(generation=0))

    def gone() -> bool:
        raise LighthouseGone("the lighthouse has died")

    manager: Any = SimpleNamespace(
        start_quorum=lambda: None, current_step=lambda: 0, should_commit=gone, not_used=None,
        begin_average=lambda row: lambda: None,
    )  # fmt: skip
    trainer.usage = SharedUsage(manager, model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(LighthouseGone):
        trainer.averaged_step(manager, None)
    assert all(torch.equal(model.state_dict()[name], one) for name, one in before.items())
    manager.should_commit = lambda: True
    trainer.averaged_step(manager, None)
    assert not torch.equal(model.state_dict()["1.running_mean"], before["1.running_mean"])
