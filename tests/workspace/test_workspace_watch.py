"""A later call costs what was touched since the one before."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import HostMesh
from monarch.job import ProcessJob
from monarch.runtime.workspace.pushing.hosts_in_push import HostsInPush
from monarch_sync import Scan, Scanner, Workspace
from tests.workspace.conftest import Project, replica_of


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was looked at: names of files, or "everything"."""
    seen: list[object] = []
    scan, rescan = Scanner.scan, Scanner.rescan

    def scan_all(self: Scanner, *follow: Any) -> Scan:
        seen.append("everything")
        return scan(self, *follow)

    def scan_some(self: Scanner, paths: Iterable[Any]) -> Scan:
        paths = list(paths)
        seen.append([path.name for path in paths])
        return rescan(self, paths)

    monkeypatch.setattr(Scanner, "scan", scan_all)
    monkeypatch.setattr(Scanner, "rescan", scan_some)
    return seen


def num_watches() -> int:
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum("inotify" in os.readlink(link) for link in links if os.path.islink(link))


def test_later_calls_look_at_what_was_touched(
    project: Project, job: ProcessJob, hosts: HostMesh, looks: list[object]
) -> None:
    project.sync(hosts)
    project.sync(hosts)
    project.edit("stepper.py", "SCALE = 1", "SCALE = 2")
    assert project.sync(hosts).changed_files == ["stepper.py"]
    assert looks == ["everything", [], ["stepper.py"]]
    assert "SCALE = 2" in (replica_of(job) / "stepper.py").read_text()


def test_after_a_call_that_broke_off_everything_is_looked_at(
    project: Project, job: ProcessJob, hosts: HostMesh, looks: list[object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    project.sync(hosts)
    project.edit("stepper.py", "SCALE = 1", "SCALE = 2")

    def lose(self: HostsInPush, addresses: object) -> None:
        raise ConnectionError("the host went away")

    with monkeypatch.context() as patch:
        patch.setattr(HostsInPush, "meet", lose)
        with pytest.raises(ConnectionError):
            project.sync(hosts)
    assert project.sync(hosts).changed_files == ["stepper.py"]
    assert looks == ["everything", "everything"]
    assert "SCALE = 2" in (replica_of(job) / "stepper.py").read_text()


def test_only_so_many_workspaces_are_watched_at_a_time(
    project: Project, hosts: HostMesh, tmp_path: Path
) -> None:
    before = num_watches()
    for i in range(7):
        folder = tmp_path / f"other{i}"
        folder.mkdir()
        (folder / "a.txt").write_text(str(i))
        project.workspace = Workspace(dirs={folder: ""})
        assert project.sync(hosts).ok
    assert num_watches() <= before + 4
