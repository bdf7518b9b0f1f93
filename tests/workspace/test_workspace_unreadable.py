"""What the author cannot read, when several hosts have it, or some of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import HostMesh, ProcMesh, this_host
from monarch.job import ProcessJob
from monarch_sync import SyncReport, Workspace
from tests.privileges import unprivileged
from tests.workspace.conftest import Project, replica_of, restart


@pytest.fixture
def closing(project: Project) -> Iterator[Project]:
    """With a file and a folder that can be closed, and are opened in the end."""
    project.write("secret.py", "KEY = 1\n")
    project.write("data/deep/x.txt", "x")
    yield project
    _set(project, 0o644, 0o755)


def _set(project: Project, of_file: int, of_folder: int) -> None:
    (project.root / "secret.py").chmod(of_file)
    (project.root / "data").chmod(of_folder)


def _push(project: Project, mesh: HostMesh | ProcMesh) -> SyncReport:
    return unprivileged(lambda: project.sync(mesh))


def _kept(report: SyncReport) -> dict[str, bool]:
    return {problem.path: problem.is_kept for problem in report.problems}


def _has(job: ProcessJob, index: int) -> list[str]:
    return [
        (replica_of(job, index) / path).read_text() for path in ("secret.py", "data/deep/x.txt")
    ]


def test_all_hosts_keep_it_and_follow_when_it_is_back(
    closing: Project, job: ProcessJob, hosts: HostMesh
) -> None:
    _push(closing, hosts)
    _set(closing, 0, 0)
    closing.write("more.py", "A = 1\n")
    report = _push(closing, hosts)
    assert report.ok
    assert _kept(report) == {"secret.py": True, "data": True}
    assert report.changed_files == ["more.py"]
    assert [_has(job, index) for index in (0, 1)] == [["KEY = 1\n", "x"]] * 2
    assert _push(closing, hosts).generation == report.generation, "nothing new"
    _set(closing, 0o644, 0o755)
    assert _push(closing, hosts).generation == report.generation
    closing.write("secret.py", "KEY = 2\n")
    report = _push(closing, hosts)
    assert (report.problems, report.changed_files) == ([], ["secret.py"])
    assert [_has(job, index) for index in (0, 1)] == [["KEY = 2\n", "x"]] * 2


def test_a_host_that_lacks_it_gets_it_from_another(
    closing: Project, job: ProcessJob, hosts: HostMesh
) -> None:
    """Who pushes has never read it: only a host can give it."""
    _push(closing, hosts)
    _set(closing, 0, 0)
    closing.write("more.py", "A = 1\n")

    restart(job, 1, lambda: shutil.rmtree(replica_of(job, 1)))
    closing.workspace = Workspace(dirs={closing.root: ""}, ignore=("another workspace",))
    report = _push(closing, hosts)
    assert report.ok, str(report)
    assert _kept(report) == {"secret.py": True, "data": True}
    assert [_has(job, index) for index in (0, 1)] == [["KEY = 1\n", "x"]] * 2


def test_what_another_author_pushed_stays(
    closing: Project, job: ProcessJob, hosts: HostMesh, tmp_path: Path
) -> None:
    _push(closing, hosts)
    other = tmp_path / "other"
    (other / "data").mkdir(parents=True)
    (other / "secret.py").write_text("KEY = 7\n")
    (other / "data/new.txt").write_text("theirs")
    theirs = Project(other)
    assert theirs.sync(hosts).ok
    _set(closing, 0, 0)
    report = _push(closing, hosts)
    assert report.ok, str(report)
    for index in (0, 1):
        replica = replica_of(job, index)
        assert (replica / "secret.py").read_text() == "KEY = 7\n"
        assert (replica / "data/new.txt").read_text() == "theirs"
        assert (replica / "stepper.py").exists()


def test_processes_here_go_on_with_what_they_run(closing: Project) -> None:
    procs = this_host().spawn_procs({"gpus": 1}, name="here")
    closing.write("stepper.py", (closing.root / "stepper.py").read_text() + "\nimport secret\n")
    steppers: Any = procs.spawn("stepper", closing.load("stepper").Stepper)
    _push(closing, procs)
    _set(closing, 0, 0)
    closing.edit("stepper.py", "SCALE = 1", "SCALE = 3")
    report = _push(closing, procs)
    assert report.ok, str(report)
    assert _kept(report) == {"secret.py": True, "data": True}
    assert list(steppers.step.call().get().values()) == [(30, 1)]
