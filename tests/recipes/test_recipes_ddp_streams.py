"""Whole runs on a stream, with an average of the weights: a failing edit, a stop, a death."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.config import configured
from monarch_recipes.extras import Extras
from tests.recipes.held_run import TASK as HELD
from tests.recipes.held_run import HeldRun, kill_a_rank, project

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

TASK = f"""{HELD}

from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        for index in torch.randperm(len(self.samples))[:300]:
            image, label = self.samples[index]
            yield image + 0.01 * torch.rand_like(image), label


def load_data(config):
    data = ddp.load_data(config)
    return ddp.Data(DataLoader(Stream(data.train), batch_size=16), data.held_out)


def build_extra_state(config, model):
    from torch.optim.swa_utils import AveragedModel

    return {{"average": AveragedModel(model)}}


def after_step(model, extra):
    extra["average"].update_parameters(model)
"""
LOSS = "    return functional.cross_entropy(logits, labels)\n"
SETTINGS = {"num_steps": 24, "num_epochs": 24, "checkpoint_every": 0}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with project(tmp_path, TASK) as made, configured(edit_patience_seconds=20.0):
        yield made


def test_a_held_step_and_a_resumed_run_have_the_samples_of_an_undisturbed_one(root: Path) -> None:
    undisturbed = HeldRun(root, "undisturbed", **SETTINGS)
    undisturbed.start()
    undisturbed.end()
    assert undisturbed.error is None, undisturbed.error
    assert any("of the train DataLoader the run takes its stream" in s for s in undisturbed.said)

    held = HeldRun(root, "held", **SETTINGS)
    bad = TASK.replace(LOSS, "    return functional.cross_entropy(logits, labels) + undefined\n")
    held.at[4] = lambda: held.push("task.py", bad)
    held.at[13] = held.record.stop  # in the middle of the second epoch, of nine steps
    held.start()
    held.when_held()
    held.push("task.py", TASK)
    held.end()
    assert held.error is None, held.error
    assert 13 <= held.steps[-1] < 24

    resumed = HeldRun(root, "held", **SETTINGS)
    resumed.start()
    resumed.end()
    assert resumed.error is None, resumed.error
    assert resumed.steps[0] == held.steps[-1] + 1
    assert resumed.digest() == undisturbed.digest()


def test_a_rank_that_dies_costs_no_sample_where_the_state_is_in_the_hosts_memory(
    root: Path,
) -> None:
    undisturbed = HeldRun(root, "undisturbed", **SETTINGS)
    undisturbed.start()
    undisturbed.end()
    killed = HeldRun(root, "killed", **SETTINGS, extras=Extras(shadow_every=4))
    killed.at[14] = kill_a_rank
    killed.start()
    killed.end()
    assert killed.error is None, killed.error
    assert [row["step"] for row in killed.events("resumed")] == [12]
    assert killed.digest() == undisturbed.digest()
