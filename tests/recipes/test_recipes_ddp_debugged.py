"""A rank of a run that stands in a debugger, while the others wait for it in a collective."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.config import configured
from monarch.runtime.client_agent import client
from tests.debugger.typist import console, wait_for_holds
from tests.recipes.held_run import LOSS, TASK, HeldRun, importable
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
    made = tmp_path / "project"
    made.mkdir()
    (made / "task.py").write_text(TASK)
    undo = importable(made)
    yield made
    undo()


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
