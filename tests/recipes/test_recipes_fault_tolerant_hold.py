"""Edits that fail when they run, in replica groups: all wait for the fix, and lose nothing."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'monarch-loop[ft]'")

from monarch.config import configured
from monarch.runs.hold.hold_report import HoldReport
from monarch_recipes import fault_tolerant
from monarch_recipes.extras import Extras
from monarch_recipes.replicas.controller import Controller
from monarch_recipes.replicas.group import Group
from tests.recipes.held_run import LOSS, NO_ROOM, HeldRun, project
from tests.support import wait_for

pytestmark = pytest.mark.timeout(300)

TASK = f"""
import time

import torch
from torch import nn
from torch.nn import functional

from monarch.actor import context


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("in backward")


def build_model(config):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 10)
    )


def compute_loss(logits, labels):
    time.sleep(0.02)
{LOSS}

def learning_rate_at(config, step, num_steps):
    return config.learning_rate
"""

IN_GROUP_1 = '    if context().actor_instance.name == "trainer1":\n        raise KeyError("mine")\n'
RATE = "    return config.learning_rate\n"
EDITS = {
    "labelz": (LOSS, LOSS.replace("labels", "labelz")),
    "in backward": (LOSS, LOSS.replace("(logits,", "(Fails.apply(logits),")),
    "SystemExit: 3": (LOSS, "    raise SystemExit(3)\n"),
    "mine": (LOSS, IN_GROUP_1 + LOSS),
    "has not ended within": (LOSS, "    while True:\n        pass\n" + LOSS),
    "later": (RATE, f"    if step == 65:\n        return config.later\n{RATE}"),
}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with project(tmp_path, TASK) as made:
        yield made


def groups(root: Path, name: str) -> HeldRun:
    run = HeldRun(root, name)
    run.module, run.config_class = fault_tolerant, fault_tolerant.FaultTolerantConfig
    run.settings = {
        "task": "task", "hidden_size": 16, "num_steps": 75, "device": "cpu",
        "hang_timeout_seconds": 30.0, "collective_timeout_seconds": 4.0, "checkpoint_every": 0,
    }  # fmt: skip
    return run


@pytest.fixture
def run(root: Path) -> Iterator[HeldRun]:
    made = groups(root, "groups")
    yield made
    made.stop()


@pytest.fixture
def stands(run: HeldRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups make no other step before what is to be done after one is done."""
    go_ahead, evaluate = Controller.may_go_ahead, Controller.evaluate_if_due

    def may_go_ahead(self: Controller, group: Group, last_seconds: float) -> bool:
        return group.step + 1 not in run.at and go_ahead(self, group, last_seconds)

    async def wait_and_evaluate(self: Controller, group: Group) -> None:
        await asyncio.to_thread(wait_for, lambda: group.step not in run.at, 60.0)
        await evaluate(self, group)

    monkeypatch.setattr(Controller, "may_go_ahead", may_go_ahead)
    monkeypatch.setattr(Controller, "evaluate_if_due", wait_and_evaluate)


@pytest.mark.long
@pytest.mark.usefixtures("stands")
def test_groups_wait_for_a_mend_and_learn_what_they_would_have(root: Path, run: HeldRun) -> None:
    undisturbed = groups(root, "undisturbed")
    for one in (undisturbed, run):
        # Where the machine stands still, no group takes another for dead.
        one.settings["heartbeat_timeout_seconds"] = 60.0
    undisturbed.start()
    undisturbed.end()
    assert undisturbed.error is None, undisturbed.error

    for number, (old, new) in enumerate(EDITS.values()):
        text = TASK.replace(old, new)
        run.at[10 * number + 5] = lambda text=text: run.push("task.py", text)
    with configured(edit_patience_seconds=0.5):
        run.start()
        for number, told in enumerate(EDITS, 1):
            held = run.when_held(number)
            assert told in held["error"], held
            assert held["file"] == "task.py", held
            assert "nothing of it was committed, and all groups wait" in held["text"]
            assert run.push("task.py", TASK + f"# {number}\n").ok
        run.end()
    assert run.error is None, run.error
    assert len(run.events("mended")) == len(EDITS)
    assert not run.events("died", "respawned"), "no group was lost for it"
    assert run.outcome.fingerprints == undisturbed.outcome.fingerprints


DIES = {"exit": "    import os; os._exit(3)\n", "crash": "    import ctypes; ctypes.string_at(0)\n"}
# The lighthouse waits so long for each that has died.
SHORT: dict[str, Any] = {"num_steps": 20, "heartbeat_timeout_seconds": 5.0, "sync_every": 2}
# A copy is never quick then, and is made beside the step, as that of a large model.
BESIDE = "from monarch.runs.hold import copy_beside\n\ncopy_beside.QUICK_SECONDS = -1.0\n"


def fingerprints_of(run: HeldRun) -> dict[int, str]:
    run.start()
    run.end()
    assert run.error is None, run.error
    found: dict[int, str] = run.outcome.fingerprints
    return found


@pytest.mark.long
@pytest.mark.usefixtures("stands")
@pytest.mark.parametrize("algorithm", ["ddp", "diloco"])
def test_code_that_ends_all_processes_costs_no_step_and_changes_nothing(
    root: Path, run: HeldRun, algorithm: str
) -> None:
    undisturbed = groups(root, "undisturbed")
    for one in (undisturbed, run):
        one.settings |= {**SHORT, "algorithm": algorithm}
    wanted = fingerprints_of(undisturbed)
    for number, text in enumerate(DIES.values()):
        edited = TASK.replace(LOSS, text + LOSS)
        run.at[4 * number + 5] = lambda edited=edited: run.push("task.py", edited)
    run.start()
    for number in range(len(DIES)):
        step = 4 * number + 5
        held = run.when_held(number + 1)
        assert held["doing"] == f"step {step + 1}", held
        whence = f"after the fix all go on from step {step}, from the host's memory"
        assert f"no group is left: {whence}" in held["text"]
        assert run.push("task.py", TASK + f"# {number}\n").ok
    run.end()
    assert run.error is None, run.error
    assert not run.events("rolled_back", "given_up")
    assert run.steps == list(range(1, 21)), "no step is made again"
    assert "and goes on from step 9, from the host's memory" in run.events("respawned")[-1]["text"]
    assert run.outcome.fingerprints == wanted


@pytest.mark.long
@pytest.mark.usefixtures("stands")
def test_kills_of_all_groups_cost_few_steps_where_copies_are_made(root: Path, run: HeldRun) -> None:
    undisturbed = groups(root, "undisturbed")
    for one in (undisturbed, run):
        one.settings |= SHORT
    wanted = fingerprints_of(undisturbed)
    (root / "task.py").write_text(BESIDE + TASK)
    run.settings["extras"] = Extras(shadow_every=5)

    def kill_all() -> None:
        for number in (0, 1):
            kill_group(run, number)

    run.at[13] = kill_all
    run.start()
    run.end()
    assert run.error is None, run.error
    again = [event for event in run.events("respawned") if "host's memory" in event["text"]]
    assert {event["step"] for event in again} == {10}, run.said
    (back,) = run.events("rolled_back")
    assert (back["step"], back["num_steps_lost"]) == (10, 3)
    assert run.outcome.fingerprints == wanted


@pytest.mark.long
@pytest.mark.usefixtures("stands")
def test_where_hosts_have_no_room_a_checkpoint_is_written_before_new_code_is_tried(
    root: Path, run: HeldRun
) -> None:
    task = NO_ROOM + TASK
    (root / "task.py").write_text(task)
    run.settings |= SHORT
    run.at[5] = lambda: run.push("task.py", task.replace(LOSS, DIES["exit"] + LOSS))
    run.start()
    held = run.when_held()
    assert "no group is left: after the fix all go on from the last checkpoint" in held["text"]
    assert run.push("task.py", task + "# fixed\n").ok
    run.end()
    assert run.error is None, run.error
    run.said_of_room()
    assert [event["step"] for event in run.events("saved")] == [5, 20]
    assert run.steps == list(range(1, 21)), "no step is made again"


@pytest.mark.long
def test_a_typo_that_is_saved_while_the_run_starts_does_not_end_it(run: HeldRun) -> None:
    importlib.import_module("task")  # What nobody has imported here is nothing to push.
    run.record.edits.begin(run.push("task.py", TASK).generation)
    run.settings["num_steps"] = 20
    assert run.push("task.py", TASK.replace("nn.Sequential(", "nn.Sequentially(")).ok
    run.start()
    held = run.when_held()
    assert "Sequentially" in held["error"]
    assert held["doing"] in ("setting up group 0", "setting up group 1")
    assert run.push("task.py", TASK.replace(LOSS, LOSS.replace("labels", "labelz"))).ok
    held = run.when_held(2)
    assert "labelz" in held["error"]
    assert held["doing"] == "step 1"
    assert run.push("task.py", TASK.replace("nn.Linear(16, 10)", "nn.Linear(17, 10)")).ok
    held = run.when_held(3)
    assert "mat1 and mat2" in held["error"]
    assert held["doing"] == "step 1"
    assert run.push("task.py", TASK).ok
    run.end()
    assert run.error is None, run.error
    assert run.steps[-1] == 20
    assert not run.events("given_up")
    assert len(set(run.outcome.fingerprints.values())) == 1


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.long
def test_code_that_was_never_edited_holds_where_a_person_watches(
    run: HeldRun, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    monkeypatch.setattr(HoldReport, "is_watched", lambda self: watched)
    run.settings["num_steps"] = 20
    (run.root / "task.py").write_text(TASK.replace(LOSS, LOSS.replace("labels", "labelz")))
    importlib.import_module("task")  # What nobody has imported here is nothing to push.
    run.start()
    if not watched:
        run.end()
        assert "labelz" in str(run.error)
        assert not run.events("held")
        return
    held = run.when_held()
    assert "labelz" in held["error"]
    assert "rollback" not in held["text"]
    assert run.push("task.py", TASK).ok
    run.end()
    assert run.error is None, run.error
    assert run.steps[-1] == 20


LONG = 100_000
"""Steps that no run here makes: it is stopped when the group that was killed is back."""


def kill_group(run: HeldRun, number: int) -> None:
    (started,) = (event for event in run.events("started") if event["group"] == number)
    os.kill(started["pids"][0], signal.SIGKILL)


def end_when_healed(run: HeldRun) -> None:
    wait_for(lambda: run.error or run.events("healed"), 120.0, "the group trains again")
    run.stop()
    assert run.error is None, run.error
    assert len(set(run.outcome.fingerprints.values())) == 1
    assert len(run.outcome.fingerprints) == 2


@pytest.mark.long
def test_a_group_that_comes_back_to_code_that_does_not_fit_the_checkpoint_holds(
    run: HeldRun,
) -> None:
    """It trains on with the model that it has, until a group is lost."""
    run.settings.update(checkpoint_every=10, max_restarts=1, num_steps=LONG)
    wider = TASK.replace("16", "24")
    run.start()
    # Not on the run's own thread, which the save after a step waits for.
    run.when_step(12)
    first = run.push("task.py", wider)
    run.when_step(run.steps[-1] + 12)
    second = run.push("task.py", wider + "# another\n")
    run.when_step(run.steps[-1] + 12)
    kill_group(run, 1)
    held = run.when_held()
    assert any("next start cannot go on from" in one for one in first.warnings)
    assert "is of another model" in held["error"]
    assert held["doing"] == "setting up group 1"
    assert f"Generation {first.generation} of the code changed" in held["text"]
    assert (held["generation"], held["good"]) == (second.generation, first.generation - 1)
    assert run.push("task.py", TASK + "# mended\n").ok
    end_when_healed(run)
    assert not run.events("given_up"), "the hold costs no restart"


@pytest.mark.long
def test_an_actor_that_cannot_be_made_holds_at_once(run: HeldRun) -> None:
    """Not when it has failed twice: what `__init__` raises is no bad luck."""
    text = Path(str(fault_tolerant.__file__)).read_text()
    (run.root / "mine.py").write_text(text)
    run.module = importlib.import_module("mine")
    run.config_class = run.module.FaultTolerantConfig
    run.settings.update(num_steps=LONG, max_restarts=1)  # for the kill
    run.start()
    run.when_step(5)
    old = "        self.seat = seats["
    assert run.push("mine.py", text.replace(old, "        self.seat = seatz[", 1)).ok
    run.when_step(run.steps[-1] + 5)
    kill_group(run, 1)
    held = run.when_held()
    assert "seatz" in held["error"]
    assert held["doing"] == "setting up group 1"
    assert held["file"] == "mine.py"
    assert run.push("mine.py", text + "# mended\n").ok
    end_when_healed(run)


LEFT_OUT = f"""
import time

import torch
from torch import nn
from torch.nn import functional

from monarch.actor import context


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 16)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.last = nn.Linear(16, 10)

    def forward(self, images):
        value = self.first(images.flatten(1))
        for block in self.blocks:
            value = torch.relu(block(value))
        return self.last(value)


def build_model(config):
    return Model()


def compute_loss(logits, labels):
    time.sleep(0.02)
{LOSS}
"""
BLOCKS = "        for block in self.blocks:\n"
NUM_BLOCKS = '1 if context().actor_instance.name == "trainer1" else 3'


@pytest.mark.long
@pytest.mark.usefixtures("stands")
@pytest.mark.parametrize("num_blocks", ["1", NUM_BLOCKS], ids=["all groups", "one group"])
def test_groups_stay_equal_where_an_edit_leaves_blocks_out(
    root: Path, run: HeldRun, num_blocks: str
) -> None:
    (root / "task.py").write_text(LEFT_OUT)
    edited = LEFT_OUT.replace(BLOCKS, f"        for block in self.blocks[:{num_blocks}]:\n")
    assert edited != LEFT_OUT
    run.settings |= {"num_steps": 40, "fingerprint_every": 1, "heartbeat_timeout_seconds": 60.0}
    run.at[8] = lambda: run.push("task.py", edited)
    run.at[24] = lambda: run.push("task.py", LEFT_OUT)
    run.start()
    run.end()
    assert run.error is None, run.error
    assert not run.events("fingerprint", "died", "held"), run.said
    # The step in which it is seen; groups find out by themselves.
    assert 1 <= len(run.events("discarded")) <= 2, run.said
    assert len(run.outcome.fingerprints) == 2
    assert len(set(run.outcome.fingerprints.values())) == 1
