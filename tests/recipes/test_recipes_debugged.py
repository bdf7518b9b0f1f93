"""A rank of a run stands in a debugger, and the others wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.config import configured
from monarch.runtime.client_agent import client
from tests.debugger.typist import console, wait_for_holds
from tests.recipes.held_run import LOSS, TASK, HeldRun, project
from tests.support import wait_for

LIMIT_SECONDS = 5.0
TORCHS_SECONDS = 2 * LIMIT_SECONDS + 10  # what the ranks are given to meet
CALLS = f"""
    CALLS.append(1)
    if len(CALLS) == 20 and dist.get_rank() == 0:
        time.sleep(0.5)  # The other rank waits in the collective of this step by now.
        breakpoint()
{LOSS}"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with project(tmp_path, TASK) as made:
        yield made


GROUPS_TASK = f"""
from torch.nn import functional

from monarch.actor import context

CALLS = []


def compute_loss(logits, labels):
    CALLS.append(1)
    if len(CALLS) == 20 and context().actor_instance.name == "trainer0":
        breakpoint()
{LOSS}"""


@pytest.mark.long
def test_a_group_that_is_held_is_not_taken_for_one_that_hangs(root: Path) -> None:
    pytest.importorskip(
        "torchft", reason="torchft is not installed: pip install 'monarch-loop[ft]'"
    )
    from monarch_recipes import fault_tolerant

    (root / "held_groups_task.py").write_text(GROUPS_TASK)
    run = HeldRun(root, "groups")
    run.module, run.config_class = fault_tolerant, fault_tolerant.FaultTolerantConfig
    run.settings = {
        "task": "held_groups_task", "hidden_size": 16, "num_steps": 60, "device": "cpu",
        "hang_timeout_seconds": LIMIT_SECONDS, "collective_timeout_seconds": 2.0,
        "join_timeout_seconds": 3.0, "checkpoint_every": 0,
    }  # fmt: skip
    with configured(breakpoint="wait"):
        run.start()
        wait_for_holds(1)
        stands_at = run.steps[-1]
        # The other group waits for it, and discards its step; longer than a group may hang.
        (discarded,) = wait_for(lambda: run.events("discarded"), 60.0)
        since = client().holds.seconds()
        wait_for(lambda: client().holds.seconds() - since > 2.0 + LIMIT_SECONDS + 2.0, 60.0)
        assert run.steps[-1] == stands_at == discarded["step"] - 1
        console("continue")
        run.end()
    assert run.error is None, run.error
    assert not run.events("died", "hung", "respawned"), run.said
    assert run.steps[-1] == 60
    assert len(run.outcome.fingerprints) == 2
    assert len(set(run.outcome.fingerprints.values())) == 1


@pytest.mark.long
def test_a_rank_that_is_held_for_longer_than_any_limit_costs_nothing(root: Path) -> None:
    straight = HeldRun(root, "straight")
    straight.start()
    straight.end()
    held_task = "import time\n\nCALLS = []\n" + TASK.replace(LOSS, CALLS)
    (root / "held_task.py").write_text(held_task)
    run = HeldRun(root, "held", task="held_task", collective_timeout_seconds=LIMIT_SECONDS)
    before = client().holds.seconds()
    with configured(breakpoint="wait"):
        run.start()
        wait_for_holds(1)
        wait_for(lambda: client().holds.seconds() - before > TORCHS_SECONDS + 1.0, 120.0)
        console("continue")
        run.end()
    assert run.error is None, run.error
    assert not run.events("died", "hung", "respawned")
    assert run.steps == straight.steps
    assert run.digest() == straight.digest()
