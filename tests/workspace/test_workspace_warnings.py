"""What a push takes and warns of: slips that will fail when they run, code that has run already."""

from __future__ import annotations

from typing import Any

from monarch.actor import ProcMesh
from tests.workspace.conftest import Project

TRAINER = """
from monarch.actor import Actor, endpoint
from monarch_reload import at_start


def build(width):
    return [0] * width


def scale(x, factor):
    return x * factor


class Trainer(Actor):
    def __init__(self):
        self.model = at_start(build)(3)

    def __reload__(self, change):
        if change.at_start and len(build(3)) != len(self.model):
            change.warn("the next start cannot go on from what was saved")

    @endpoint
    def step(self):
        return len(self.model)
"""


def test_slips_are_told_with_their_lines_by_all_ranks_once(
    project: Project, procs: ProcMesh
) -> None:
    project.write("warning_slips.py", TRAINER)
    assert project.sync(procs).ok
    trainers: Any = procs.spawn("trainers", project.load("warning_slips").Trainer)
    trainers.step.call().get(timeout=60)
    slips = "return scale(lenght, 2) + scale(1)"
    project.edit("warning_slips.py", "return len(self.model)", slips)
    report = project.sync(procs)
    assert report.ok
    line = 1 + TRAINER[: TRAINER.index("return len(self.model)")].count("\n")
    assert report.warnings == [
        f"warning_slips.py:{line}: name 'lenght' is not defined",
        f"warning_slips.py:{line}: scale() is missing a required argument: 'factor'",
    ]
    assert f"warning: {report.warnings[0]}" in str(report)


def test_what_has_run_counts_from_the_next_start_and_actors_may_say_more(
    project: Project, procs: ProcMesh
) -> None:
    project.write("warning_start.py", TRAINER)
    assert project.sync(procs).ok
    trainers: Any = procs.spawn("trainers", project.load("warning_start").Trainer)
    trainers.step.call().get(timeout=60)
    project.edit("warning_start.py", "[0] * width", "[0] * width * 2")
    assert project.sync(procs).warnings == [
        "warning_start.build counts from the next start of the run",
        "the next start cannot go on from what was saved",
    ]
    project.edit("warning_start.py", "at_start(build)(3)", "at_start(build)(2)")
    assert project.sync(procs).warnings == [
        "warning_start.Trainer.__init__ counts from the next start of the actor"
    ]
    assert set(trainers.step.call().get(timeout=60).values()) == {3}
