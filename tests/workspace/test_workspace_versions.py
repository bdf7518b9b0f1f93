"""An old host agent with a newer author: the push is refused, and says which side to upgrade."""

from __future__ import annotations

import pytest

from monarch.actor import HostMesh
from monarch.job import ProcessJob
from monarch_sync import messages
from tests.workspace.conftest import Project, replica_of


@pytest.mark.parametrize(("step", "older"), [(1, "the peer"), (-1, "this side")])
def test_another_version_is_refused_by_the_hosts_name(
    project: Project, job: ProcessJob, hosts: HostMesh, monkeypatch: pytest.MonkeyPatch,
    step: int, older: str,
) -> None:  # fmt: skip
    generation = project.sync(hosts).generation
    project.edit("stepper.py", "SCALE = 1", "SCALE = 2")
    with monkeypatch.context() as newer:
        newer.setattr(messages, "PROTOCOL_VERSION", messages.PROTOCOL_VERSION + step)
        newer.setattr(messages, "_last_encoded", (None, b""))  # put back, too
        report = project.sync(hosts)
    assert not report.ok
    for name, error in zip(("trainers0", "trainers1"), report.errors, strict=True):
        assert error.startswith(f"{name}: ")
        assert f"Upgrade monarch-loop on {older} to the version" in error
    assert "SCALE = 1" in (replica_of(job) / "stepper.py").read_text()
    report = project.sync(hosts)
    assert report.ok
    assert report.generation == generation + 1
