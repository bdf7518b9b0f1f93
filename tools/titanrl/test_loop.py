"""Runs TitanRL's training program to its end; `make programs` runs it with TitanRL on the path."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = "torchtitan.experiments.rl.train"
# Of several ranks that share data, FSDP asks for sums that gloo has not; and torch 2.13's takes
# DTensors alone, not what `spmd_types`, the default, makes.
TRAINER_OF_TWO_RANKS = (
    "--trainer.parallelism.tensor_parallel_degree=2",
    "--trainer.parallelism.spmd_backend=partial_dtensor",
)


def train(folder: Path, *options: str, first: int = 1) -> list[dict[str, float]]:
    """Run TitanRL's training, and return what it printed of each step, from ``first`` on."""
    spec = importlib.util.find_spec("torchtitan")
    assert spec is not None
    assert spec.origin is not None
    tokenizer = Path(spec.origin).parents[1] / "tests/assets/tokenizer"
    result = subprocess.run(
        [sys.executable, "-m", TRAIN, "--module=vowels", "--config=small"]
        + [f"--hf_assets_path={tokenizer}", f"--dump_folder={folder}", *options],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # the model is small, and processes are many
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    print(result.stdout)
    assert result.returncode == 0
    lines = re.findall(r"Train \| Step: +(\d+) (.*)", result.stdout)
    assert [int(step) for step, _ in lines] == list(range(first, first + len(lines)))
    steps = [
        {key: float(value) for key, value in re.findall(r"(\S+): (\S+)", metrics)}
        for _, metrics in lines
    ]
    assert all(math.isfinite(step["loss/mean"]) for step in steps)
    return steps


def test_twenty_steps_in_lockstep(tmp_path: Path) -> None:
    steps = train(tmp_path)
    assert len(steps) == 20
    # Both compute the same of the same weights, so these came, in each step.
    assert all(step["bit_wise/logprob_diff/max"] < 1e-4 for step in steps)
    rewards = [step["rollout_reward/_mean"] for step in steps]
    assert sum(rewards[-5:]) > sum(rewards[:5])
    records = map(json.loads, (tmp_path / "rollout_samples.jsonl").read_text().splitlines())
    versions = {
        turn["max_policy_version"]
        for record in records
        if not record["is_validation"]
        for turn in record["turns"]
    }
    assert versions >= set(range(20))


@pytest.mark.parametrize(
    "options",
    [
        ["--generator.parallelism.data_parallel_degree=2", "--num_generators=1"],
        ["--generator.parallelism.tensor_parallel_degree=2", "--num_generators=1"],
        ["--generator_router.no-hot-swap", "--num_generators=2"],
    ],
    ids=["data_parallel", "tensor_parallel", "two_generators"],
)
def test_several_ranks_and_no_lockstep(tmp_path: Path, options: list[str]) -> None:
    steps = train(
        tmp_path,
        *TRAINER_OF_TWO_RANKS,
        "--async_loop.num_training_steps=4",
        "--async_loop.target_offpolicy_steps=1",
        *options,
    )
    assert len(steps) == 4
    assert steps[0]["bit_wise/logprob_diff/max"] < 1e-4


def test_a_run_goes_on_from_its_checkpoint_on_other_ranks(tmp_path: Path) -> None:
    checkpoint = (
        "--trainer.checkpoint.enable",
        "--trainer.checkpoint.interval=2",
        "--trainer.checkpoint.no-last-save-model-only",
    )
    assert len(train(tmp_path, *checkpoint, "--async_loop.num_training_steps=2")) == 2
    options = (*checkpoint, *TRAINER_OF_TWO_RANKS, "--async_loop.num_training_steps=4")
    steps = train(tmp_path, *options, first=3)
    assert len(steps) == 2
    assert all(step["bit_wise/logprob_diff/max"] < 1e-4 for step in steps)
