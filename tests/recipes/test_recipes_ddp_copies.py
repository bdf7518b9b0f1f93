"""New processes of ddp go on from copies in the memory of their hosts: no step is made again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.config import configured
from monarch_recipes.extras import Extras
from tests.recipes.held_run import LOSS, NO_ROOM, TASK, HeldRun, kill_a_rank, project
from tests.support import wait_for

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

RANK_1 = "    if dist.get_rank() == 1:\n"
DIES = {
    "one exits": RANK_1 + "        import os; os._exit(3)\n",
    "one is killed": RANK_1 + "        import os; os.kill(os.getpid(), 9)\n",
    "one crashes": RANK_1 + "        import ctypes; ctypes.string_at(0)\n",
    "all exit": "    import os; os._exit(3)\n",
}
# A copy is never quick then, and is made beside the step, as that of a large model.
BESIDE = "from monarch.runs.hold import copy_beside\n\ncopy_beside.QUICK_SECONDS = -1.0\n"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with project(tmp_path, TASK) as made, configured(edit_patience_seconds=20.0):
        yield made


@pytest.fixture
def digest(root: Path) -> str:
    """Of a run that nothing disturbs."""
    run = HeldRun(root, "undisturbed")
    run.start()
    run.end()
    assert run.error is None, run.error
    return run.digest()


def num_held() -> int:
    """How many memories this process, as the host agent, holds."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return sum("monarch-state" in one for one in links)


@pytest.mark.parametrize("is_beside", [False, True])
def test_code_that_ends_processes_costs_no_step_and_changes_nothing(
    root: Path, digest: str, is_beside: bool
) -> None:
    task = (BESIDE if is_beside else "") + TASK
    run = HeldRun(root)
    # Where all exit at once, and the copy is not quick, there is none.
    dies = {name: text for name, text in DIES.items() if not (is_beside and name == "all exit")}
    for number, text in enumerate(dies.values()):
        edited = task.replace(LOSS, text + LOSS)
        run.at[2 * number + 2] = lambda edited=edited: run.push("task.py", edited)
    run.start()
    for number, name in enumerate(dies, 1):
        held = run.when_held(number)
        assert held["doing"] == f"step {2 * number + 1}", (name, held)
        assert run.push("task.py", task + f"# {number}\n").ok
    run.end()
    assert run.error is None, run.error
    resumed = [event["text"] for event in run.events("resumed")]
    # Once for the first death, and once after the fix.
    steps = [2 * number for number in range(1, len(dies) + 1) for _ in range(2)]
    assert resumed == [f"goes on from step {one}, from the host's memory" for one in steps]
    assert not [one for one in run.events("respawned") if "again" in one["text"].split(",")[-1]]
    assert run.steps == sorted(set(run.steps))
    assert run.digest() == digest
    wait_for(lambda: not num_held(), 60.0, "the memory is let go")


def test_copies_each_few_steps_are_gone_on_from(root: Path, digest: str) -> None:
    run = HeldRun(root, extras=Extras(shadow_every=5))
    run.at[13] = kill_a_rank
    run.start()
    run.end()
    assert run.error is None, run.error
    (resumed,) = run.events("resumed")
    assert resumed["step"] in (10, 15), resumed
    assert run.digest() == digest


def test_where_hosts_have_no_room_a_checkpoint_is_written_before_new_code_is_tried(
    root: Path, digest: str
) -> None:
    task = NO_ROOM + TASK
    (root / "task.py").write_text(task)
    run = HeldRun(root)
    run.at[2] = lambda: run.push("task.py", task.replace(LOSS, DIES["all exit"] + LOSS))
    run.start()
    assert run.when_held()["doing"] == "step 3"
    assert run.push("task.py", task + "# fixed\n").ok
    run.end()
    assert run.error is None, run.error
    assert [event["step"] for event in run.events("resumed")] == [2, 2]
    assert run.events("saved")[0]["step"] == 2
    run.said_of_room()
    assert run.steps == sorted(set(run.steps)), "no step is made again"
    assert run.digest() == digest
