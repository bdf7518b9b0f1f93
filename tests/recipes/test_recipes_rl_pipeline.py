"""The way of a batch in the client, with crews that answer as they are told."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from monarch.runs import Record
from monarch_recipes.rl import RLConfig
from monarch_recipes.rollouts import pipeline as pipeline_module
from monarch_recipes.rollouts.generator import Generated, GenerateRequest, Weights
from monarch_recipes.rollouts.groups import Sample, SampleGroup
from monarch_recipes.rollouts.judging import Judged
from monarch_recipes.rollouts.pipeline import Pipeline
from monarch_recipes.rollouts.replay import Replay
from tests.recipes.test_recipes_ddp_run import Meddled

CONFIG = RLConfig(problems_per_step=4, samples_per_problem=2, num_generators=2, num_rewards=2)


class World:
    """Which code the generators and reward actors run when they are asked."""

    def __init__(self) -> None:
        self.generation_of: Callable[[int], int] = lambda number: 1  # by generator
        self.reward_of: Callable[[int, str], float] = lambda number, text: float(len(text))
        self.code_of: Callable[[int], str] = lambda number: "first"  # by reward actor
        self.replay = Replay(CONFIG.buffer_groups)
        self.num_generated = self.num_judged = 0

    def answer(self, crew: str, number: int, method: str, args: Sequence[Any]) -> Any:
        if method == "generate":
            return self.generate(number, args[0])
        if method == "judge":
            return self.judge(number, *args)
        if method == "waiting":
            return self.replay.groups
        if method == "replace":
            self.replay.groups = args[0]
            return None
        return getattr(self.replay, method)(*args)

    def generate(self, number: int, request: GenerateRequest) -> Generated:
        self.num_generated += 1
        samples = (Sample((7,), (-1.0,), "a"), Sample((7, 8), (-1.0, -1.0), "ab"))
        groups = [
            SampleGroup(problem, (0,), samples, 3, self.generation_of(number), 1.0)
            for problem in request.problems
        ]
        return Generated(groups, 0.0, 1.0)

    def judge(self, number: int, numbers: list[int], texts: list[list[str]], _: float) -> Judged:
        self.num_judged += 1
        rewards = [[self.reward_of(number, text) for text in row] for row in texts]
        solved = [[False for _ in row] for row in texts]
        return Judged(rewards, solved, 1, self.code_of(number))


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def record(tmp_path: Path) -> Meddled:
    return Meddled(tmp_path / "run")


@pytest.fixture
def pipeline(world: World, record: Record, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    class AnsweringCrew:
        def __init__(self, hosts: Any, name: str, num: int, *_: Any, **__: Any) -> None:
            self.name, self.num = name, num

        def __len__(self) -> int:
            return self.num

        def ask(self, number: int, method: str, *args: Any) -> Any:
            answer = world.answer(self.name, number, method, args)
            return SimpleNamespace(number=number, get=lambda timeout=None: answer)

    monkeypatch.setattr(pipeline_module, "Crew", AnsweringCrew)
    hosts: Any = None
    return Pipeline(CONFIG, None, hosts, record, preload=())


def batch(pipeline: Pipeline, number: int, config: RLConfig = CONFIG) -> list[SampleGroup]:
    """What has been generated and judged, and waits in the buffer."""
    pipeline.begin(number, number, config, Weights("policy", 1))
    groups, _ = pipeline.collect()
    judged = pipeline.judge(number, groups, config, number + 1)
    pipeline.keep(judged)
    return judged.groups


def test_a_batch_of_mixed_generations_is_made_again_where_it_is_older(
    pipeline: Pipeline, world: World
) -> None:
    now = {0: 1, 1: 2}
    world.generation_of = lambda number: now[number]

    def begin() -> list[SampleGroup]:
        pipeline.begin(0, 0, CONFIG, Weights("policy", 1))
        now[0] = 3  # New code came after both were asked, and once more.
        now[1] = 3
        return pipeline.collect()[0]

    groups = begin()
    assert [group.generation for group in groups] == [3, 3, 3, 3]
    assert sorted(group.problem for group in groups) == [0, 1, 2, 3]
    assert world.num_generated == 4


def test_a_batch_that_two_rewards_would_have_judged_is_judged_again(
    pipeline: Pipeline, world: World
) -> None:
    codes = iter(["first", "second"])
    world.code_of = lambda number: next(codes, "second")
    groups = batch(pipeline, 0)
    assert {group.reward_code for group in groups} == {"second"}
    assert world.num_judged == 4
    assert [group.problem for group in groups] == [0, 2, 1, 3]  # as they were generated


@pytest.mark.parametrize(
    ("policy", "rewards"), [("keep", [1.0, 2.0]), ("drop", None), ("rescore", [-1.0, -2.0])]
)
def test_what_waits_when_the_reward_has_changed(
    pipeline: Pipeline, world: World, record: Meddled, policy: Literal["keep", "drop", "rescore"],
    rewards: list[float] | None,
) -> None:  # fmt: skip
    config = dataclasses.replace(CONFIG, on_reward_change=policy)
    batch(pipeline, 0, config)
    old = [group.problem for group in world.replay.groups]
    assert len(old) == 4
    world.reward_of, world.code_of = lambda number, text: -float(len(text)), lambda number: "new"
    batch(pipeline, 1, config)
    waited = [group for group in world.replay.groups if group.problem in old]
    assert [group.rewards for group in waited] == ([] if rewards is None else [rewards] * 4)
    codes = {group.reward_code for group in waited}
    assert codes == {"keep": {"first"}, "drop": set(), "rescore": {"new"}}[policy]
    fresh = [group for group in world.replay.groups if group.problem not in old]
    assert [group.rewards for group in fresh] == [[-1.0, -2.0]] * 4
    told = [row for row in record.rows("events.jsonl") if row["kind"] == "reward"]
    assert [(row["policy"], row["step"], row["num_waiting"]) for row in told] == [(policy, 2, 4)]


def test_what_a_new_reward_judges_alike_is_not_kept(pipeline: Pipeline, world: World) -> None:
    config = dataclasses.replace(CONFIG, on_reward_change="rescore")
    batch(pipeline, 0, config)
    world.reward_of, world.code_of = lambda number, text: 1.0, lambda number: "new"
    batch(pipeline, 1, config)
    assert world.replay.groups == []


def test_the_same_reward_leaves_what_waits_alone(
    pipeline: Pipeline, world: World, record: Meddled
) -> None:
    config = dataclasses.replace(CONFIG, on_reward_change="drop")
    batch(pipeline, 0, config)
    batch(pipeline, 1, config)
    assert len(world.replay.groups) == 8
    assert "reward" not in record.kinds()


class Clock:
    """A clock that sleeping moves on; ``then`` is done from the time ``at`` on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.at = 1e9
        self.then: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.at:
            self.then()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The client's process: which generation it runs, and which is on its way."""
    one = SimpleNamespace(generation=3, code_states=SimpleNamespace(coming=0))
    monkeypatch.setattr(pipeline_module, "process", SimpleNamespace(current=lambda: one))
    return one


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(pipeline_module, "time", one)
    return one


def test_a_step_waits_for_an_edit_that_is_on_its_way(
    pipeline: Pipeline, here: SimpleNamespace, clock: Clock
) -> None:
    here.code_states.coming = 4
    clock.at, clock.then = 0.1, lambda: setattr(here, "generation", 4)
    pipeline.let_edit_in()
    assert clock.now == pytest.approx(0.1, abs=0.01)


def test_a_step_does_not_wait_without_an_edit_nor_for_long(
    pipeline: Pipeline, here: SimpleNamespace, clock: Clock
) -> None:
    pipeline.let_edit_in()
    here.code_states.coming = 3  # It is in already.
    pipeline.let_edit_in()
    assert clock.now == 0
    here.code_states.coming = 4
    pipeline.let_edit_in()
    assert 0.1 < clock.now < 0.3


def test_a_step_goes_on_where_the_edit_is_given_up(
    pipeline: Pipeline, here: SimpleNamespace, clock: Clock
) -> None:
    here.code_states.coming = 4
    clock.at, clock.then = 0.05, lambda: setattr(here.code_states, "coming", 0)
    pipeline.let_edit_in()
    assert clock.now == pytest.approx(0.05, abs=0.01)
