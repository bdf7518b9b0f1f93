"""What a hold of ddp puts back, and what its checkpoints can bring back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from monarch.config import configured
from monarch.runs.recover.ranks import RunFailed
from monarch_recipes.checkpoint import checkpoint_paths, load_checkpoint
from tests.recipes.held_run import HeldRun, project
from tests.support import wait_for

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

# All of its state that lies outside of a model's and an optimizer's state_dict changes the loss.
TASK = """
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

COUNT = 0
SUMS = (torch.zeros(1), [0])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        self.calls = 0

    def forward(self, images):
        self.calls += 1
        return self.layers(images) * (1 + 1e-3 * self.calls)


class EmaSGD(torch.optim.SGD):
    k = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.k += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                entries = self.state[parameter]
                entries.setdefault("sum", torch.zeros_like(parameter, dtype=torch.float64))
                entries["sum"] += parameter.grad.double() / 3
                parameter -= (group["lr"] * entries["sum"] / (1 + self.k)).float()
        # HERE


def build_model(config):
    return Net()


def build_optimizer(config, model):
    return EmaSGD(model.parameters(), lr=config.learning_rate)


def compute_loss(logits, labels):
    global COUNT
    COUNT += 1
    SUMS[0].add_(1)
    SUMS[1][0] += 1
    factor = 1 + 1e-3 * (COUNT + float(SUMS[0]) + SUMS[1][0])
    return functional.cross_entropy(logits, labels) * factor


def learning_rate_at(config, step, num_steps):
    return np.interp(step, [0, num_steps], [config.learning_rate, 0.0])
"""
LATE = "        if dist.get_rank() == 1: raise ValueError('late')\n        # HERE"
KEPT = "        self.param_groups[0]['fn'] = lambda: 1\n        # HERE"
POPPED = "        self.param_groups[0].pop('fn', None)\n        # HERE"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with project(tmp_path, TASK) as made, configured(edit_patience_seconds=20.0):
        yield made


@pytest.fixture
def run(root: Path) -> Iterator[HeldRun]:
    made = HeldRun(root, checkpoint_every=6)
    yield made
    made.stop()


def edited(by: str) -> str:
    return TASK.replace("        # HERE", by)


def test_all_state_is_put_back_where_a_step_fails_after_it_has_changed(
    run: HeldRun, root: Path
) -> None:
    undisturbed = HeldRun(root, "undisturbed", checkpoint_every=6)
    undisturbed.start()
    undisturbed.end()
    assert undisturbed.error is None, undisturbed.error

    assert run.at == {}
    run.at[10] = lambda: run.push("task.py", edited(LATE))
    run.start()
    held = run.when_held()
    assert held["in_place"], held
    assert "are as they were" in held["text"]
    run.push("task.py", TASK + "# fixed\n")
    run.end()
    assert run.error is None, run.error
    assert run.digest() == undisturbed.digest()
    path = checkpoint_paths(run.record.checkpoint_dir)[-1]
    optimizer = load_checkpoint(path).state["optimizer"]
    assert {str(one["sum"].dtype) for one in optimizer["state"].values()} == {"torch.float64"}
    assert type(optimizer["param_groups"][0]["lr"]) is float  # though the schedule gives another


def test_state_that_cannot_be_saved_holds_no_run(run: HeldRun) -> None:
    run.at[8] = lambda: run.push("task.py", edited(KEPT))
    run.at[15] = lambda: run.push("task.py", edited(POPPED))
    run.start()
    run.end()
    assert run.error is None, run.error
    assert not run.events("held")
    (unsaved,) = run.events("unsaved")  # once, though it is tried in each step
    assert unsaved["step"] == 12
    assert "optimizer.param_groups[0].fn is a function" in unsaved["text"]
    assert "step-00000006.pt" in unsaved["text"]
    saved = [event["step"] for event in run.events("saved")]
    assert saved[:2] == [6, 16], saved  # as soon as it could be, not when it was due again


def test_a_run_that_is_stopped_with_state_that_cannot_be_saved_says_so(run: HeldRun) -> None:
    run.at[8] = lambda: run.push("task.py", edited(KEPT))
    run.start()
    run.when_step(12)
    wait_for(lambda: run.events("unsaved"), 60.0)
    run.stop()
    assert isinstance(run.error, RunFailed)
    assert "optimizer.param_groups[0].fn" in str(run.error)
    assert "the last good one is" in str(run.error)
    assert "step-00000006.pt" in str(run.error)


@pytest.mark.parametrize("is_edited", [False, True], ids=["as it began", "on edited code"])
def test_a_run_of_which_no_checkpoint_can_be_read_stops(run: HeldRun, is_edited: bool) -> None:
    """And nothing becomes of them: no step is made, and none is overwritten."""
    folder = run.record.checkpoint_dir
    folder.mkdir(parents=True, exist_ok=True)
    for step in (10, 20):
        (folder / f"step-{step:08}.pt").write_bytes(b"damaged")
    if is_edited:
        run.record.edits.begin(0)
        run.push("task.py", TASK + "# edited\n")
    run.start()
    run.end()
    assert isinstance(run.error, RunFailed), run.error
    for part in ("step-00000010.pt", "step-00000020.pt", "cannot be read", "--new"):
        assert part in str(run.error)
    assert not run.events("held")
    assert not run.steps
    assert [path.read_bytes() for path in checkpoint_paths(folder)] == [b"damaged"] * 2


def test_a_run_that_loses_a_rank_and_all_checkpoints_stops(run: HeldRun) -> None:
    def spoil() -> None:
        for path in checkpoint_paths(run.record.checkpoint_dir):
            path.write_bytes(b"damaged")
        kill_a_rank()

    run.at[8] = spoil
    run.start()
    run.end()
    assert isinstance(run.error, RunFailed), run.error
    assert "step-00000006.pt" in str(run.error)
    assert max(run.steps) < 12
    assert [path.read_bytes() for path in checkpoint_paths(run.record.checkpoint_dir)] == [
        b"damaged"
    ]


def kill_a_rank() -> None:
    (zygote,) = (one for one in psutil.Process().children() if one.children())
    os.kill(zygote.children()[0].pid, signal.SIGKILL)
