"""The recipe `rl` on real procs: the same curve twice, resume, deaths, edits of the reward."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import this_host
from monarch.observe.json_rows import json_rows
from monarch_recipes import rl
from monarch_recipes.checkpoint import checkpoint_paths
from monarch_recipes.rl import RLConfig
from tests.recipes.held_run import HeldRun, digest_of, project
from tests.recipes.test_recipes_ddp_run import Meddled, ranks

pytestmark = pytest.mark.timeout(300)

CONFIG = RLConfig(
    task="tests.recipes.rl_task", width=16, num_blocks=1, num_heads=2, num_supervised_steps=4,
    num_steps=6, num_held_out=8,
    problems_per_step=8, samples_per_problem=4, buffer_groups=16, num_slots=16, temperature=2.0,
    evaluate_every=0, checkpoint_every=0, device="cpu",
)  # fmt: skip
SYNCHRONOUS = dataclasses.replace(CONFIG, num_batches_ahead=0)
TASK = """
def reward(problem, completion):
    return float(len(completion))
"""


def curve(record: Meddled) -> list[tuple[float, ...]]:
    names = ("step", "loss", "grad_norm", "reward")
    rows = [row for row in record.rows("metrics.jsonl") if "again" not in row and "loss" in row]
    return [tuple(row.get(name, 0.0) for name in names) for row in rows]


def weights_of(record: Meddled) -> str:
    import torch

    state = torch.load(checkpoint_paths(record.checkpoint_dir)[-1], weights_only=True)
    return digest_of([state["model"], state["optimizer"], state["buffer"]])


@pytest.mark.long
def test_a_seed_gives_the_same_curve_twice_and_so_does_a_run_that_is_resumed(
    tmp_path: Path,
) -> None:
    straight = Meddled(tmp_path / "straight")
    rl.run(dataclasses.replace(SYNCHRONOUS, num_generators=2), this_host(), straight)
    again = Meddled(tmp_path / "again")
    again.meddle = lambda step: again.stop() if step == 7 else None
    config = dataclasses.replace(SYNCHRONOUS, num_generators=2)
    assert rl.run(config, this_host(), again).held_out_solved is None
    resumed = Meddled(tmp_path / "again")
    rl.run(config, this_host(), resumed)
    assert "resumed" in resumed.kinds()
    assert len(curve(straight)) == 10
    assert curve(resumed) == curve(straight)
    assert weights_of(resumed) == weights_of(straight)
    rows = straight.rows("rollouts.jsonl")
    assert {row["version"] for row in rows} == {row["step"] - 1 for row in rows}


@pytest.mark.long
def test_any_process_may_die(tmp_path: Path) -> None:
    """Each once, the generator, the reward actor, the buffer, and the trainer last."""
    record = Meddled(tmp_path / "run")
    config = dataclasses.replace(CONFIG, num_steps=12, checkpoint_every=2)

    def kill(number: int) -> None:
        procs = sorted(ranks(), key=lambda one: one.create_time())
        os.kill(procs[number].pid, signal.SIGKILL)

    acts = {6: 0, 8: 0, 10: 0, 12: 0}  # those that were made anew are the youngest
    record.meddle = lambda step: kill(acts.pop(step)) if step in acts else None
    outcome = rl.run(config, this_host(), record)
    assert outcome.step == 16
    assert not acts
    died = [row["text"] for row in record.rows("events.jsonl") if row["kind"] == "died"]
    assert len(died) == 4, record.stream.getvalue()
    assert [step for step, *_ in curve(record)] == list(range(1, 17))


@pytest.mark.long
def test_shards_learn_what_whole_copies_learn_and_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    """FSDP2 on two trainers: its curve is that of ddp, and its weights arrive whole."""
    config = dataclasses.replace(SYNCHRONOUS, num_trainers=2, num_steps=3, checkpoint_every=6)
    whole = Meddled(tmp_path / "ddp")
    rl.run(config, this_host(), whole)
    sharded = Meddled(tmp_path / "fsdp")
    fsdp = dataclasses.replace(config, parallelism="fsdp")
    sharded.meddle = lambda step: sharded.stop() if step == 6 else None
    rl.run(fsdp, this_host(), sharded)
    sharded = Meddled(tmp_path / "fsdp")
    assert rl.run(fsdp, this_host(), sharded).step == 7
    assert "resumed" in sharded.kinds()
    assert len(curve(whole)) == len(curve(sharded)) == 7
    for expected, made in zip(curve(whole), curve(sharded), strict=True):
        assert made == pytest.approx(expected, rel=1e-3, abs=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_20_random_kills_end_no_training(tmp_path: Path) -> None:
    """Of any process: generators, reward actors, the buffer, trainer ranks, while steps go on."""
    record = Meddled(tmp_path / "run")
    config = dataclasses.replace(
        CONFIG, num_steps=400, num_generators=2, num_rewards=2, num_trainers=2, checkpoint_every=1,
        max_restarts=20,
    )  # fmt: skip
    draw = random.Random(20)
    done, killed = threading.Event(), list[int]()

    def kill_some() -> None:
        while len(killed) < 20 and not done.wait(draw.uniform(0.5, 2.0)):
            procs = ranks()
            if len(procs) >= 7:  # all of them, so that each kind may be met
                victim = draw.choice(procs)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim.pid, signal.SIGKILL)
                    killed.append(victim.pid)
        record.stop()

    killer = threading.Thread(target=kill_some)
    killer.start()
    try:
        outcome = rl.run(config, this_host(), record)
    finally:
        done.set()
        killer.join()
    assert len(killed) == 20, record.stream.getvalue()
    assert not ranks()
    steps = [step for step, *_ in curve(record)]
    assert outcome.step > 4
    assert sorted(set(steps)) == list(range(1, outcome.step + 1))
    again = Meddled(tmp_path / "run")
    config = dataclasses.replace(config, num_steps=outcome.step)
    assert rl.run(config, this_host(), again).held_out_solved is not None  # it can go on


@pytest.fixture
def run(tmp_path: Path) -> Iterator[HeldRun]:
    with project(tmp_path, TASK) as root:
        made = HeldRun(root, "run")
        made.module, made.config_class = rl, RLConfig
        settings: dict[str, Any] = dataclasses.asdict(CONFIG)
        made.settings = {**settings, "task": "task", "num_steps": 30}
        yield made
        made.stop()


@pytest.mark.long
@pytest.mark.parametrize(
    "bad", ["1 / 0", "float('nan')", "all(one == 0 for one in iter(int, 1))"],
    ids=["raises", "nan", "loops"],
)  # fmt: skip
def test_a_bad_reward_holds_and_nothing_that_it_judged_is_learned_from(
    run: HeldRun, bad: str
) -> None:
    run.settings |= {"reward_timeout_seconds": 0.3, "on_reward_change": "drop"}
    generations: list[int] = []
    wrong = f"def reward(problem, completion):\n    return {bad}\n"
    right = "def reward(problem, completion):\n    return -float(len(completion))\n"
    run.at[8] = lambda: run.push("task.py", wrong)
    run.start()
    held = run.when_held()
    assert held["doing"].startswith("batch"), held
    assert held["in_place"], held
    generations.append(held["generation"])
    assert run.push("task.py", right).ok
    run.end()
    assert run.error is None, run.error
    rows = list(json_rows(run.record.folder / "rollouts.jsonl"))
    assert generations[0] not in {row["reward_generation"] for row in rows}
    assert {row["reward"] <= 0 for row in rows if row["reward_generation"] > generations[0]} == {
        True
    }
    assert [event["policy"] for event in run.events("reward")] == ["drop"]
    assert run.steps == list(range(1, 35))
