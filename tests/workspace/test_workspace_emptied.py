"""A folder that has become empty since hosts got its files: an unmounted disk looks like that."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from monarch.actor import HostMesh, ProcMesh
from monarch.job import ProcessJob
from monarch_sync import SyncReport, Workspace, WorkspaceEmptied
from tests.workspace.conftest import Project, replica_of


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    (folder / "b.txt").write_text("b")
    return folder


class Authors:
    """Who push the project and the data, and know nothing of each other's pushes."""

    def __init__(self, project: Project, data: Path) -> None:
        self._dirs = {project.root: "code", data: "data"}
        self._num = 0

    def another(self) -> Workspace:
        self._num += 1
        return Workspace(dirs=self._dirs, ignore=(f"no such file {self._num}",))


@pytest.fixture
def authors(project: Project, data: Path) -> Authors:
    return Authors(project, data)


def push(mesh: HostMesh | ProcMesh, workspace: Workspace, **options: bool) -> SyncReport:
    report: SyncReport = asyncio.run(mesh.sync_workspace(workspace, **options))
    return report


def clear(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def has(job: ProcessJob) -> list[list[str]]:
    return [sorted(p.name for p in (replica_of(job, at) / "data").iterdir()) for at in (0, 1)]


def test_who_has_not_seen_its_files_may_not_empty_it(
    authors: Authors, data: Path, job: ProcessJob, hosts: HostMesh
) -> None:
    push(hosts, authors.another())
    clear(data)
    with pytest.raises(WorkspaceEmptied) as caught:
        push(hosts, authors.another())
    assert (caught.value.folder, caught.value.num_files) == (str(data), 2)
    assert has(job) == [["a.txt", "b.txt"]] * 2
    newcomer = authors.another()
    for _ in range(2):
        with pytest.raises(WorkspaceEmptied):
            push(hosts, newcomer)
    (data / "c.txt").write_text("c")
    assert push(hosts, newcomer).ok
    assert has(job) == [["c.txt"]] * 2


def test_who_has_seen_its_files_has_deleted_them(
    authors: Authors, data: Path, job: ProcessJob, hosts: HostMesh
) -> None:
    workspace = authors.another()
    push(hosts, workspace)
    clear(data)
    assert push(hosts, workspace).ok
    assert has(job) == [[], []]
    assert push(hosts, authors.another()).ok, "there is nothing left to lose"


def test_who_says_so_may_empty_it(
    authors: Authors, data: Path, job: ProcessJob, hosts: HostMesh
) -> None:
    push(hosts, authors.another())
    clear(data)
    assert push(hosts, authors.another(), allow_empty=True).ok
    assert has(job) == [[], []]


def test_one_host_that_has_files_of_it_is_enough(
    authors: Authors, data: Path, hosts: HostMesh
) -> None:
    workspace = authors.another()
    push(hosts, workspace)
    clear(data)
    push(hosts.slice(hosts=0), workspace)
    with pytest.raises(WorkspaceEmptied):
        push(hosts, authors.another())


def test_what_rules_leave_out_counts_as_not_there(
    authors: Authors, data: Path, job: ProcessJob, hosts: HostMesh
) -> None:
    push(hosts, authors.another())
    (data / ".monarchignore").write_text("*\n")
    with pytest.raises(WorkspaceEmptied, match="does a pattern leave out all of it"):
        push(hosts, authors.another())
    assert has(job) == [["a.txt", "b.txt"]] * 2


def test_files_that_run_where_they_lie_are_nobodys_to_empty(
    authors: Authors, data: Path, procs: ProcMesh
) -> None:
    clear(data)
    assert push(procs, authors.another()).ok
