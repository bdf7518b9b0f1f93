"""A push that an actor starts: all that its program runs there changes, its own process too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from monarch.actor import HostMesh, ProcMesh, this_host
from tests.workspace.conftest import Project

PUSHER = """
from monarch.actor import Actor, endpoint
from monarch_sync import Workspace

MARK = 1


class Pusher(Actor):
    @endpoint
    def push(self, mesh, root):
        report = mesh.sync_workspace(Workspace(dirs={root: ""})).get(timeout=40)
        return report.ok, report.errors, dict(report.actors_patched)

    @endpoint
    def mark(self):
        return MARK


class AsyncPusher(Actor):
    @endpoint
    async def push(self, mesh, root):
        report = await mesh.sync_workspace(Workspace(dirs={root: ""}))
        return report.ok, report.errors, dict(report.actors_patched)

    @endpoint
    async def mark(self):
        return MARK
"""


def _edit(project: Project, old: int, new: int) -> None:
    project.edit("stepper.py", f"SCALE = {old}", f"SCALE = {new}")
    project.edit("pusher.py", f"MARK = {old}", f"MARK = {new}")


def _amounts(steppers: Any) -> set[int]:
    return {amount for amount, _ in steppers.step.call().get(timeout=30).values()}


@pytest.mark.parametrize("kind", ["Pusher", "AsyncPusher"])
@pytest.mark.parametrize("where", ["beside", "elsewhere"])
@pytest.mark.long
def test_what_the_program_runs_changes_too(
    project: Project, procs: ProcMesh, kind: str, where: str
) -> None:
    project.write("pusher.py", PUSHER)
    assert project.sync(procs).ok
    steppers = procs.spawn("stepper", project.load("stepper").Stepper)
    assert _amounts(steppers) == {10}
    home = procs if where == "beside" else this_host().spawn_procs(name="home")
    pushers: Any = home.spawn("pusher", getattr(project.load("pusher"), kind))
    pusher = pushers.slice(**dict.fromkeys(pushers.extent.labels, 0))
    # All have imported it, before it is written anew in its place.
    assert set(pushers.mark.call().get(timeout=30).values()) == {1}
    for number in (2, 3):
        _edit(project, number - 1, number)
        ok, errors, patched = pusher.push.call_one(procs, str(project.root)).get(timeout=40)
        assert ok, errors
        assert patched["Stepper"] == 2
        assert _amounts(steppers) == {10 * number}
        assert set(pushers.mark.call().get(timeout=30).values()) == {number}
    _edit(project, 3, 4)
    assert project.sync(procs).ok
    assert _amounts(steppers) == {40}


def test_two_actors_of_one_process_push_at_once(project: Project, hosts: HostMesh) -> None:
    project.write("pusher.py", PUSHER)
    procs = hosts.spawn_procs(name="trainers")
    assert project.sync(procs).ok
    steppers = procs.spawn("stepper", project.load("stepper").Stepper)
    assert _amounts(steppers) == {10}
    home = this_host().spawn_procs(name="home")
    pushers = [home.spawn(f"pusher{n}", project.load("pusher").Pusher) for n in range(3)]
    _edit(project, 1, 2)
    asked = [pusher.push.call_one(procs, str(project.root)) for pusher in pushers]
    for answer in asked:
        ok, errors, _ = answer.get(timeout=40)
        assert ok, errors
    assert _amounts(steppers) == {20}


def test_a_refusal_reaches_the_actor(project: Project, procs: ProcMesh) -> None:
    project.write("pusher.py", PUSHER)
    assert project.sync(procs).ok
    steppers = procs.spawn("stepper", project.load("stepper").Stepper)
    assert _amounts(steppers) == {10}
    home = this_host().spawn_procs(name="home")
    pusher: Any = home.spawn("pusher", project.load("pusher").Pusher)
    Path(project.root / "stepper.py").write_text("def broken(\n")
    ok, errors, _ = pusher.push.call_one(procs, str(project.root)).get(timeout=40)
    assert not ok
    assert "stepper.py" in errors[0]
    assert _amounts(steppers) == {10}
