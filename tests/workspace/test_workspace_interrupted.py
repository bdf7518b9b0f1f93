"""A push that is cut short, by Ctrl-C or by a lost host, leaves everybody on the old state."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.actor import HostMesh
from monarch.job import ProcessJob
from monarch.runtime import process
from monarch.runtime.workspace.session import session_of
from tests.workspace.conftest import Project, replica_of


@pytest.mark.long_but(1)
@pytest.mark.parametrize("step", ["prepare", "fence", "halt", "patch"])
def test_ctrl_c_in_the_middle_of_a_push_puts_everybody_back(
    project: Project,
    job: ProcessJob,
    hosts: HostMesh,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    procs = hosts.spawn_procs(name="trainers")
    assert project.sync(procs).ok
    steppers = procs.spawn("stepper", project.load("stepper").Stepper)
    stamps = steppers.stamp.call().get(timeout=30).values()
    before = (project.root / "stepper.py").read_text()
    project.edit("stepper.py", "SCALE = 1", "SCALE = 2")
    session = session_of(process.current())
    addresses = [host.address for host in hosts._hosts]
    reload = session.reload
    method, given = ("prepare", reload.prepare) if step == "prepare" else ("ask", reload.ask)

    def cut_short(first: Any, *more: Any) -> Any:
        if step in ("prepare", getattr(getattr(first, "kind", None), "value", "")):
            monkeypatch.undo()
            raise KeyboardInterrupt
        return given(first, *more)

    monkeypatch.setattr(reload, method, cut_short)
    with pytest.raises(KeyboardInterrupt):
        session.push(addresses, project.workspace)
    assert [(replica_of(job, i) / "stepper.py").read_text() for i in (0, 1)] == [before] * 2
    assert steppers.stamp.call().get(timeout=30).values() == stamps

    report = project.sync(procs)
    assert report.ok
    assert report.generation > stamps[0][0]
    values = steppers.stamp.call().get(timeout=30).values()
    assert values == [(report.generation, 2)] * 2
