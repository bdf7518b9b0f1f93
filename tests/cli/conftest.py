"""A project in a folder, and the ``monarch`` command, run there as a process of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch.job import ProcessJob, job_load
from monarch_sync.replicas.state_folder import find_state_folder
from tests.cli.command_folder import CommandFolder
from tests.support import Program

RECIPE = '''
"""Counts on every proc until told to stop."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass

from amounts import AMOUNT
from monarch.actor import Actor, ProcMesh, context, endpoint
import amounts


@dataclass
class Config:
    num_steps: int = 3
    stop_file: str = ""


class Adder(Actor):
    def __init__(self):
        self.total = 0

    @endpoint
    def add(self) -> tuple[int, int]:
        self.total += amounts.AMOUNT
        return self.total, amounts.AMOUNT


def run(config: Config, procs: ProcMesh, display) -> None:
    adders = procs.spawn("adder", Adder)
    last = None
    step = 0
    while step < config.num_steps or (config.stop_file and not os.path.exists(config.stop_file)):
        step += 1
        ranks = adders.add.call().get().values()
        amounts_seen = sorted({amount for _, amount in ranks})
        if amounts_seen != last:
            display.message(f"amounts {amounts_seen} on {len(ranks)} procs")
            last = amounts_seen
        display.metrics(step, config.num_steps, {"total": ranks[0][0]})
        time.sleep(0.01)
    display.message("done")
'''

PROJECT = """
[job]
hosts = { trainers = 2 }

[workspace]
dirs = ["."]
ignore = ["runs/"]
"""


class Folder(CommandFolder):
    """A project, and the command run in it."""

    def monarch(self, *arguments: str, status: int | None = 0, **environment: str) -> str:
        output = super().monarch(*arguments, status=status, **environment)
        assert "Traceback" not in output, output
        return output

    @property
    def job(self) -> ProcessJob:
        job = job_load(self.path / ".monarch/job_state.json")
        assert isinstance(job, ProcessJob)
        return job

    def replica(self, index: int = 0) -> Path:
        return Path(self.job.hosts[index].workspace)

    def state(self, index: int = 0) -> Path:
        """Where a replica keeps what it knows."""
        state = find_state_folder(self.replica(index))
        assert state is not None
        return state


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    made.write("monarch.toml", PROJECT)
    made.write("amounts.py", "AMOUNT = 1\n")
    made.write("adding.py", RECIPE)
    yield made
    # Where a test has failed there may be a note without a job.
    with contextlib.suppress(FileNotFoundError):
        made.job.kill()


@pytest.fixture
def command(
    monarch_program: Callable[..., Program],
    folder: CommandFolder,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Program]:
    """Starts the command in the folder, to be watched while it runs."""

    def start(*arguments: str) -> Program:
        monkeypatch.chdir(folder.path)
        return monarch_program(*arguments)

    return start
