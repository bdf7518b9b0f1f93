"""A branch of thousands of files is switched to while a job trains, and writes where it runs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import HostMesh
from monarch.job import ProcessJob
from tests.support import wait_for
from tests.workspace.conftest import Project, replica_of
from tests.workspace.steps import Stamps

TRAINER = """
import os
from pathlib import Path

from monarch.actor import Actor, context, endpoint

from lib.part7 import mod7

MARK = 0


class Trainer(Actor):
    def __init__(self):
        self.num_steps = 0

    @endpoint
    def step(self):
        here = Path(os.environ["WORKSPACE_DIR"])
        self.num_steps += 1
        for folder in ("checkpoints", "lib/part3", "lib/part4/__pycache__"):
            if self.num_steps % 20:
                continue
            (here / folder).mkdir(parents=True, exist_ok=True)
            (here / folder / f"step{self.num_steps}.pt").write_text(str(self.num_steps))
        with open(here / "train.log", "a") as log:
            log.write(f"{self.num_steps}\\n")
        return context().generation, MARK, mod7.VALUE, self.num_steps
"""


def _branch(project: Project, num_files: int, mark: int) -> None:
    """Every file of the tree is another; some are gone, and some new."""
    for index in range(num_files):
        part, name = index % 50, f"mod{index}.py" if index < 100 else f"file{index}.txt"
        path = project.root / f"lib/part{part}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if index >= 100 and index % 10 == mark % 10:
            path.unlink(missing_ok=True)
        else:
            path.write_text(f"VALUE = {mark}\nINDEX = {index}\n")
    project.write("trainer.py", TRAINER.replace("MARK = 0", f"MARK = {mark}"))


def _ours(root: Path) -> dict[str, str]:
    kept = {"__pycache__", "checkpoints"}
    return {
        str(path.relative_to(root)): path.read_text()
        for path in root.rglob("*")
        if path.is_file() and not kept & set(path.parts)
        if not path.name.startswith("step") and path.name != "train.log"
    }


@pytest.mark.long
@pytest.mark.parametrize(
    "num_files",
    [500, pytest.param(5_000, marks=[pytest.mark.huge, pytest.mark.timeout(600)])],
)
def test_a_branch_switch_in_the_middle_of_training(
    num_files: int, project: Project, job: ProcessJob, hosts: HostMesh
) -> None:
    _branch(project, num_files, 1)
    procs = hosts.spawn_procs(name="trainers")
    assert project.sync(procs).ok
    trainers: Any = procs.spawn("trainer", project.load("trainer").Trainer)
    stamps = Stamps()
    answers: list[list[Any]] = []
    is_over = threading.Event()

    def train() -> None:
        while not is_over.is_set():
            answers.append(list(trainers.step.call().get(timeout=60).values()))

    training = threading.Thread(target=train)
    training.start()
    try:
        for mark in (2, 1):
            start = len(answers)
            wait_for(lambda start=start: len(answers) > start + 2, 60, what="steps")
            _branch(project, num_files, mark)
            report = project.sync(procs)
            assert report.ok, str(report)
            assert len(report.changed_files) > num_files * 0.8
    finally:
        is_over.set()
        training.join(60)
    stamps.close()
    stamps.check()
    answers.append(list(trainers.step.call().get(timeout=60).values()))
    assert all(len(set(values)) == 1 for values in answers), "ranks differ"
    assert all(mark == value for [(_, mark, value, _), *_] in answers), "half of a branch"
    assert answers[-1][0][1] == 1
    num_steps = answers[-1][0][3]
    expected = _ours(project.root)
    for index in (0, 1):
        root = replica_of(job, index)
        assert _ours(root) == expected
        steps = [f"step{n}.pt" for n in range(20, num_steps + 1, 20)]
        for folder in ("checkpoints", "lib/part3", "lib/part4/__pycache__"):
            assert all((root / folder / name).exists() for name in steps), f"lost in {folder}"
        assert (root / "train.log").read_text().split() == [str(n) for n in range(1, num_steps + 1)]
