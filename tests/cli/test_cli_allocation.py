"""What a run knows of its allocation: ended, replaced, or short of a host."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from monarch.runs.folder import RunFolder, runs_in
from tests.cli.conftest import Folder
from tests.support import Program, is_running, wait_for

Command = Callable[..., Program]

SECONDS = 60.0
# A run that did not know would try again, and wait each time.
AT_ONCE_SECONDS = 15.0

# Trains without torch: the sum is the step's, so that no step is lost or made twice.
RECIPE = '''
"""Adds up, begun again from its checkpoint whenever a rank is lost."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from monarch.actor import Actor, HostMesh, endpoint
from monarch.config_file import live
from monarch.runs import Record
from monarch.runs.attempts import Attempt, with_attempts


@dataclass
class Config:
    num_steps: int = 20
    amount: int = 1
    stop_file: str = ""
    max_restarts: int = 3


class Adder(Actor):
    def __init__(self, total):
        self.total = total

    @endpoint
    def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def run(config: Config, hosts: HostMesh, record: Record) -> int:
    return with_attempts(
        lambda attempt: train(config, record, attempt), hosts, 1, record,
        name="adding", max_restarts=config.max_restarts,
    )


def train(config: Config, record: Record, attempt: Attempt) -> int:
    found = sorted(record.checkpoint_dir.glob("step-*"))
    step = int(found[-1].name[5:]) if found else 0
    total = int(found[-1].read_text()) if found else 0
    attempt.saving.resumed(found[-1] if found else None, step, [])
    adders = attempt.procs.spawn("adder", Adder, total)
    record.message(f"pids {adders.pid.call().get().values()}")
    waits = bool(config.stop_file)
    while step < config.num_steps and not record.is_stopping:
        (total, *_) = adders.add.call(config.amount).get().values()
        step += 1
        attempt.step_made(step)
        record.metrics(step, config.num_steps, {"total": total})
        path = record.checkpoint_dir / f"step-{step:08}"
        path.write_text(str(total))
        attempt.saving.saved(step, path)
        while waits and step >= config.num_steps // 2 and not os.path.exists(config.stop_file):
            adders.pid.call().get()
            time.sleep(0.01)
    record.message(f"total {total}")
    return total
'''


@pytest.fixture
def up(folder: Folder) -> Folder:
    folder.write("summing.py", RECIPE)
    folder.monarch("apply")
    return folder


def begin(folder: Folder, command: Command) -> Program:
    """A run that stands in the middle of its steps until ``go`` is there."""
    program = command("run", "summing.py", "stop_file=go")
    wait_for(lambda: any(run.metrics()[9:] for run in runs_in(folder.path / "runs")), SECONDS)
    return program


def the_run(folder: Folder) -> RunFolder:
    (run,) = runs_in(folder.path / "runs")
    return run


def check_whole(folder: Folder) -> None:
    run = the_run(folder)
    assert run.status == "finished"
    assert [row["total"] for row in run.metrics()] == list(range(1, 21))


def test_a_run_ends_at_once_when_its_allocation_is_killed(up: Folder, command: Command) -> None:
    program = begin(up, command)
    up.monarch("kill", "--yes")
    began = time.monotonic()
    assert program.wait(SECONDS) == 1, program.story()
    assert time.monotonic() - began < AT_ONCE_SECONDS
    said = program.story()
    assert "the allocation was ended by monarch kill" in said, said
    assert "restart" not in said
    assert "step 10" in said
    assert "monarch apply" in said
    assert "monarch run summing.py stop_file=go" in said
    assert the_run(up).status == "failed"
    # It is as it said.
    up.monarch("apply")
    up.write("go", "")
    up.monarch("run", "summing.py", "stop_file=go")
    check_whole(up)


def test_a_run_moves_over_to_the_allocation_in_its_place(up: Folder, command: Command) -> None:
    program = begin(up, command)
    before = {host.pid for host in up.job.hosts}
    project = up.path / "monarch.toml"
    up.write("monarch.toml", project.read_text().replace("[job]\n", "[job]\npreload = ['json']\n"))
    up.monarch("apply", "--yes")
    assert not before & {host.pid for host in up.job.hosts}
    up.write("go", "")
    assert program.wait(SECONDS) == 0, program.story()
    assert "the run moves over" in program.story()
    check_whole(up)


def test_a_host_that_dies_is_brought_up_again(up: Folder, command: Command) -> None:
    program = begin(up, command)
    kept, dead = (host.pid for host in up.job.hosts)
    os.kill(dead, signal.SIGKILL)
    wait_for(lambda: len(the_run(up).events()) and up.job.is_running(), SECONDS)
    assert is_running(kept)
    up.write("go", "")
    assert program.wait(SECONDS) == 0, program.story()
    assert "trainers1 had ended" in program.story()
    check_whole(up)
