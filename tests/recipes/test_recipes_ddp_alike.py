"""Ranks of ddp stay alike, whatever an edit leaves out; where one has come apart, it is found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.config import configured
from monarch.runs.recover.ranks import RunFailed
from monarch_recipes.checkpoint import checkpoint_paths
from tests.recipes.held_run import HeldRun, project
from tests.support import wait_for

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

# Its ranks say what they have at each step, and do what a file beside it says.
TASK = """
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from monarch_recipes import ddp
from monarch_recipes.fingerprint import digest_of, state_of, sums_of

FOLDER = Path(__file__).parent.parent
KEPT = {}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 16)
        self.norm = nn.BatchNorm1d(16)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.last = nn.Linear(16, 10)

    def forward(self, images):
        value = self.norm(self.first(images.flatten(1)))
        for block in self.blocks:
            value = torch.relu(block(value))
        return self.last(value)


def load_data(config):
    return ddp.load_data(config)


def build_model(config):
    KEPT["model"] = Model()
    return KEPT["model"]


def build_optimizer(config, model):
    KEPT["optimizer"] = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    return KEPT["optimizer"]


def compute_loss(logits, labels):
    return functional.cross_entropy(logits, labels)


def learning_rate_at(config, step, num_steps):
    model, rank = KEPT["model"], dist.get_rank()
    poke = FOLDER / f"poke-{rank}"
    if poke.exists():
        poke.unlink()
        with torch.no_grad():
            model.blocks[1].weight[3, 4] += 1e-3
            model.last.bias[0] += 1.0
    state = state_of(model, [KEPT["optimizer"]])
    with open(FOLDER / f"digests-{rank}", "a") as file:
        file.write(json.dumps([step, digest_of(sums_of(state))]) + "\\n")
    return config.learning_rate
"""
LOOP = "        for block in self.blocks:\n"
LEAVES_OUT = TASK.replace(LOOP, "        for block in self.blocks[:1]:\n")
ON_RANK_1 = TASK.replace(
    LOOP, "        for block in self.blocks[: 1 if dist.get_rank() == 1 else 3]:\n"
)

MISSPELT = TASK.replace("(logits, labels)\n\n", "(logits, labelz)\n\n")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with project(tmp_path, TASK) as made, configured(edit_patience_seconds=20.0):
        yield made


@pytest.fixture
def start(root: Path) -> Iterator[Callable[..., HeldRun]]:
    runs: list[HeldRun] = []

    def make(**settings: Any) -> HeldRun:
        runs.append(HeldRun(root, **settings))
        runs[-1].at = settings.pop("at", {})
        return runs[-1]

    yield make
    for run in runs:
        run.stop()


def digests(root: Path) -> list[dict[int, str]]:
    """What each rank had before each step."""
    found = []
    for rank in range(2):
        lines = (root.parent / f"digests-{rank}").read_text().splitlines()
        found.append(dict(json.loads(line) for line in lines))
    return found


@pytest.mark.parametrize("edited", [LEAVES_OUT, ON_RANK_1], ids=["all ranks", "one rank"])
@pytest.mark.parametrize("micro_batch", [16, 6], ids=["whole", "accumulated"])
def test_an_edit_that_leaves_blocks_out_works_and_so_does_its_end(
    root: Path, start: Callable[..., HeldRun], edited: str, micro_batch: int
) -> None:
    assert edited != TASK
    run = start(max_micro_batch_size=micro_batch)
    run.at[8] = lambda: run.push("task.py", edited)
    run.at[20] = lambda: run.push("task.py", TASK)
    run.start()
    run.end()
    assert run.error is None, run.error
    assert not run.events("held", "died", "begun_again", "apart"), run.said
    first, second = digests(root)
    assert first == second
    assert len(first) == run.outcome.step
    told = [event["text"] for event in run.events("unused")]
    if edited == LEAVES_OUT:
        assert told == [
            "from step 9, no rank uses blocks.1.weight and 3 more, which stay as they are",
            "from step 21, all parameters are used again",
        ]
    else:
        assert not told


def test_a_rank_that_has_come_apart_is_named_held_and_put_right_by_a_key(
    root: Path, start: Callable[..., HeldRun]
) -> None:
    run = start(fingerprint_every=5)
    run.at[12] = lambda: (root.parent / "poke-1").touch()
    run.start()
    held = run.when_held()
    (told,) = run.events("apart")
    assert told["text"].startswith("rank 1 differs from rank 0 in ")
    assert told["text"].endswith(", since a step after 10")
    assert "blocks.1.weight" in told["parameters"]
    assert "last.bias" in told["parameters"]
    assert held["choices"] == ["c", "t"]
    run.answer("t")
    run.end()
    assert run.error is None, run.error
    assert run.events("alike")
    assert run.events("mended")
    first, second = digests(root)
    assert [step for step in first if first[step] != second[step]] == [12, 13, 14]


def test_the_checkpoints_state_may_be_taken_instead(
    root: Path, start: Callable[..., HeldRun]
) -> None:
    run = start(fingerprint_every=5, checkpoint_every=5)
    run.at[12] = lambda: (root.parent / "poke-0").touch()
    run.start()
    run.when_held()
    run.answer("c")
    run.end()
    assert run.error is None, run.error
    assert run.events("resumed")[-1]["step"] == 10
    first, second = digests(root)
    assert first == second  # Of steps that were made again, the last counts.


def test_where_nobody_is_there_the_checkpoint_counts_or_the_run_ends(
    root: Path, start: Callable[..., HeldRun]
) -> None:
    run = start(fingerprint_every=5, checkpoint_every=5)
    run.record.edits.policy = "rollback"
    run.at[12] = lambda: (root.parent / "poke-1").touch()
    run.start()
    run.end()
    assert run.error is None, run.error
    assert len(run.events("apart")) == 2  # one of ours, one of the policy's
    assert digests(root)[0] == digests(root)[1]

    other = start(name="other", fingerprint_every=5)
    other.record.edits.policy = "end"
    other.at[12] = lambda: (root.parent / "poke-1").touch()
    other.start()
    other.end()
    assert isinstance(other.error, RunFailed)
    assert "rank 1 differs from rank 0" in str(other.error)
    assert not checkpoint_paths(other.record.checkpoint_dir)


def test_nothing_that_differs_is_saved_or_said_to_be_as_it_was(
    root: Path, start: Callable[..., HeldRun]
) -> None:
    run = start(fingerprint_every=0, checkpoint_every=0)
    run.at[8] = lambda: run.push("task.py", MISSPELT)
    run.start()
    run.when_held()
    assert any("weights and optimizer are as they were" in text for text in run.said)
    run.push("task.py", TASK)
    run.when_step(12)
    # Not due; the next hold looks all the same.
    (root.parent / "poke-1").touch()
    wait_for(lambda: not (root.parent / "poke-1").exists(), 60.0, "the poke")
    run.push("task.py", MISSPELT)
    held = run.when_held(2)
    assert "rank 1 differs from rank 0" in run.said[-1] or not held["in_place"]
    assert "as they were" not in held["text"]


LOADS_WRONGLY = (
    TASK.replace("torch.optim.AdamW(model.parameters()", "Forgetful(model.parameters()")
    + """

class Forgetful(torch.optim.AdamW):
    def load_state_dict(self, state):
        super().load_state_dict(state)
        if dist.get_rank() == 1:
            self.state[KEPT["model"].last.bias]["exp_avg"].zero_()
"""
)


def test_ranks_that_resume_are_compared(root: Path, start: Callable[..., HeldRun]) -> None:
    (root / "task.py").write_text(LOADS_WRONGLY)
    run = start(fingerprint_every=0)
    run.at[10] = run.record.stop
    run.start()
    run.end()
    assert run.error is None, run.error
    assert checkpoint_paths(run.record.checkpoint_dir)
    again = start(fingerprint_every=0)
    again.start()
    again.when_held()
    (told,) = again.events("apart")
    assert told["text"] == "rank 1 differs from rank 0 in exp_avg of last.bias"
    again.answer("t")
    again.end()
    assert again.error is None, again.error
    assert not again.events("apart")[1:]
