"""What a run knows of its allocation: ended, replaced, or short of a host."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable

import psutil
import pytest
from click.testing import CliRunner

from monarch.cli.main import cli
from monarch.runs.record.folder import RunFolder, runs_in
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
from monarch.runs.attempts import TrainingAttempt, with_attempts


@dataclass
class Config:
    num_steps: int = 20
    amount: int = 1
    stop_file: str = ""
    max_restarts: int = 3
    pause_seconds: float = 0.0
    wait_file: str = ""


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


def train(config: Config, record: Record, attempt: TrainingAttempt) -> int:
    found = sorted(record.checkpoint_dir.glob("step-*"))
    step = int(found[-1].name[5:]) if found else 0
    total = int(found[-1].read_text()) if found else 0
    attempt.saving.resumed(found[-1] if found else None, step, [])
    adders = attempt.procs.spawn("adder", Adder, total)
    record.message(f"pids {adders.pid.call().get().values()}")
    while config.wait_file and not os.path.exists(config.wait_file):
        adders.pid.call().get()
        time.sleep(0.01)
    waits = bool(config.stop_file)
    while step < config.num_steps and not record.is_stopping:
        (total, *_) = adders.add.call(config.amount).get().values()
        time.sleep(config.pause_seconds)
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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_a_host_that_dies_is_brought_up_again(up: Folder, command: Command) -> None:
    program = begin(up, command)
    kept, dead = (host.pid for host in up.job.hosts)
    os.kill(dead, signal.SIGKILL)
    wait_for(lambda: not is_running(dead), SECONDS)
    wait_for(lambda: up.job.is_running(), SECONDS, "the host to be brought up again")
    assert is_running(kept)
    up.write("go", "")
    assert program.wait(SECONDS) == 0, program.story()
    assert re.search(r"trainers1 \(pid \d+\) has ended: brought up again", program.story())
    check_whole(up)


# Any process, at any moment.

VICTIMS = ("host", "template", "rank")
MOMENTS = {"start": 0, "training": 5, "end": 19}


def find(folder: Folder, victim: str) -> psutil.Process | None:
    host = psutil.Process(folder.job.hosts[1].pid)
    templates = host.children()
    if victim == "host":
        return host
    if victim == "template":
        return next(iter(templates), None)
    return next((proc for template in templates for proc in template.children()), None)


@pytest.mark.long
@pytest.mark.parametrize(
    ("victim", "moment"),
    [
        pytest.param(
            victim,
            moment,
            marks=[] if victim == "host" or moment == "training" else pytest.mark.slow,
        )
        for victim in VICTIMS
        for moment in MOMENTS
    ],
)
def test_a_run_survives_a_kill(up: Folder, command: Command, victim: str, moment: str) -> None:
    program = command("run", "summing.py", "pause_seconds=0.02")

    def is_due() -> bool:
        runs = runs_in(up.path / "runs")
        return bool(runs) and len(runs[0].metrics()) >= MOMENTS[moment]

    def is_killed() -> bool:
        with contextlib.suppress(psutil.Error):
            process = find(up, victim)
            if process is not None:
                process.kill()
                return True
        return program.process.poll() is not None

    wait_for(is_due, SECONDS)
    wait_for(is_killed, SECONDS, what="the victim")
    began = time.monotonic()
    assert program.wait(SECONDS) == 0, program.story()
    assert time.monotonic() - began < AT_ONCE_SECONDS
    assert "giving up" not in program.story()
    check_whole(up)


@pytest.mark.long
def test_a_run_that_was_lost_before_its_first_checkpoint_goes_on_in_its_folder(
    up: Folder, command: Command
) -> None:
    program = command("run", "summing.py", "max_restarts=0", "wait_file=go")
    program.line("pids ")
    process = find(up, "rank")
    assert process is not None
    process.kill()
    assert program.wait(SECONDS) == 1, program.story()
    assert "giving up after 0 restarts" in program.story()
    assert "there is no checkpoint yet" in program.story()
    up.write("go", "")
    up.monarch("run", "summing.py", "max_restarts=0", "wait_file=go")
    check_whole(up)


# Who is asked before a run is ended.


@pytest.mark.long
def test_apply_refuses_to_end_a_run_for_another_allocation(up: Folder, command: Command) -> None:
    program = begin(up, command)
    pids = [host.pid for host in up.job.hosts]
    project = up.path / "monarch.toml"
    up.write("monarch.toml", project.read_text().replace("[job]\n", "[job]\npreload = ['json']\n"))
    refused = up.monarch("apply", status=1)
    name = the_run(up).name
    assert f"{name} (monarch run summing.py stop_file=go, pid {program.pid}, user " in refused
    assert "monarch apply --yes" in refused
    assert [host.pid for host in up.job.hosts] == pids
    status = up.monarch("status")
    assert f"2 hosts, used by {name} (monarch run summing.py stop_file=go, pid" in status
    said = up.monarch("kill")
    assert said.startswith(f"ending {name} ("), said
    assert program.wait(SECONDS) == 1


def test_apply_brings_up_what_has_ended_and_leaves_the_rest(folder: Folder) -> None:
    folder.monarch("apply")
    kept, dead = (host.pid for host in folder.job.hosts)
    os.kill(dead, signal.SIGKILL)
    wait_for(lambda: not is_running(dead))
    said = folder.monarch("apply")
    assert "brought up again: trainers1; 1 host went on as before" in said
    assert folder.job.hosts[0].pid == kept
    assert folder.job.is_running()


@pytest.mark.long
def test_a_run_has_a_dead_host_brought_up_first(up: Folder) -> None:
    dead = up.job.hosts[0].pid
    os.kill(dead, signal.SIGKILL)
    wait_for(lambda: not is_running(dead), SECONDS)
    said = up.monarch("run", "summing.py")
    assert "brought up again: trainers0" in said
    assert "on allocation 'trainers': 2 hosts" in said
    check_whole(up)


@pytest.mark.long
def test_kill_asks_at_a_terminal(
    up: Folder, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = begin(up, command)
    monkeypatch.chdir(up.path)
    monkeypatch.setattr("monarch.cli.terminal.confirm.is_somebody_there", lambda: True)
    pids = [host.pid for host in up.job.hosts]
    no = CliRunner().invoke(cli, ["kill"], input="n\n")
    assert no.exit_code == 1
    assert f"{the_run(up).name} (monarch run summing.py" in no.output
    assert "runs on it: end that too? [y/N]" in no.output
    assert all(map(is_running, pids))
    yes = CliRunner().invoke(cli, ["kill"], input="y\n")
    assert yes.exit_code == 0, yes.output
    assert not any(map(is_running, pids))
    assert program.wait(SECONDS) == 1


@pytest.mark.long
def test_a_second_run_is_told_before_its_recipe_is_imported(up: Folder, command: Command) -> None:
    program = begin(up, command)
    up.write("slow.py", "raise SystemExit('imported')")
    refused = up.monarch("run", "slow.py", "rate=1", status=1)
    assert "imported" not in refused
    assert f"in use by {the_run(up).name} (monarch run summing.py stop_file=go, pid" in refused
    assert f"`kill {program.pid}`" in refused
    assert "monarch run slow.py rate=1 --local" in refused
    up.write("go", "")
    assert program.wait(SECONDS) == 0
