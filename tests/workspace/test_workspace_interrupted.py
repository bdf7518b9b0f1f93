"""A push that is cut short, by Ctrl-C or by a lost host, leaves everybody on the old state."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.actor import HostMesh
from monarch.job import ProcessJob
from monarch.runtime import process
from monarch.runtime.workspace.code_switch.owner import Owner
from monarch.runtime.workspace.session import session_of
from tests.workspace.conftest import Project, replica_of


class CutShort:
    """The real owner, but for one step that ends the program instead."""

    def __init__(self, owner: Owner, step: str) -> None:
        self._owner = owner
        self._step = step

    def __getattr__(self, name: str) -> Any:
        if name == self._step:
            raise KeyboardInterrupt
        return getattr(self._owner, name)


@pytest.mark.parametrize("step", ["prepare", "fence", "halt", "patch", "go"])
def test_ctrl_c_in_the_middle_of_a_push_puts_everybody_back(
    project: Project, job: ProcessJob, hosts: HostMesh, step: str
) -> None:
    procs = hosts.spawn_procs(name="trainers")
    assert project.sync(procs).ok
    steppers = procs.spawn("stepper", project.load("stepper").Stepper)
    stamps = steppers.stamp.call().get(timeout=30).values()
    before = (project.root / "stepper.py").read_text()
    project.edit("stepper.py", "SCALE = 1", "SCALE = 2")
    session = session_of(process.current())
    addresses = [host.address for host in hosts._hosts]

    with pytest.raises(KeyboardInterrupt):
        session.push(addresses, project.workspace, owners=[CutShort(session.reload, step)])
    assert [(replica_of(job, i) / "stepper.py").read_text() for i in (0, 1)] == [before] * 2
    assert steppers.stamp.call().get(timeout=30).values() == stamps

    report = project.sync(procs)
    assert report.ok
    assert report.generation > stamps[0][0]
    values = steppers.stamp.call().get(timeout=30).values()
    assert values == [(report.generation, 2)] * 2
