"""Hosts that have nothing yet get a workspace's parts while the author still looks at it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.actor import HostMesh
from monarch.cli.sync.progress_bar import bar_line
from monarch.job import ProcessJob
from monarch.runtime.workspace.pushing import workspace_push
from monarch.runtime.workspace.pushing.hosts_in_push import HostInPush, HostsInPush
from monarch.runtime.workspace.pushing.memory import Memory
from monarch.wire.address import ProcAddress
from monarch_sync import SyncReport, Workspace
from monarch_sync.progress import Progress, followed_by
from tests.support import Program, is_running, wait_for
from tests.workspace.author import script
from tests.workspace.conftest import Project, replica_of, restart, state_of
from tests.workspace.steps import PLAYER, Strike, struck

CONTENT = os.urandom(2 << 20)  # as much as a part has


@pytest.fixture
def project(project: Project) -> Project:
    """One of several parts."""
    project.write("player.py", PLAYER)
    for folder in ("data", "data/more"):
        (project.root / folder).mkdir()
        for name in ("a.bin", "b.bin"):
            (project.root / folder / name).write_bytes(CONTENT + f"{folder}/{name}".encode())
    return project


def is_there(project: Project, job: ProcessJob, index: int = 0) -> bool:
    """Whether a host has it all."""
    files = [path for path in project.root.rglob("*.*") if path.suffix != ".pyc"]
    copies = [replica_of(job, index) / path.relative_to(project.root) for path in files]
    return [copy.is_file() and copy.read_bytes() for copy in copies] == [
        path.read_bytes() for path in files
    ]


def staged(job: ProcessJob, index: int = 0) -> list[str]:
    return os.listdir(state_of(job, index) / "stage")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_running(pid), what="the end")


def test_content_goes_once_and_before_the_stage(
    project: Project, job: ProcessJob, hosts: HostMesh
) -> None:
    with struck(Strike("StageRequest", lambda: None)) as steps:
        report = project.sync(hosts)
    assert report.ok, str(report)
    assert steps.count("Instalment") >= 2 * 4  # one and more of each of two hosts
    assert "Instalment" not in steps[steps.index("StageRequest") :]
    assert "Supply" not in steps
    content = sum(p.stat().st_size for p in project.root.rglob("*.*") if p.suffix != ".pyc")
    for index, host in enumerate(report.hosts):
        assert is_there(project, job, index)
        assert content < host.bytes_sent < 1.5 * content
    project.edit("player.py", "MARK = 0", "MARK = 1")
    with struck(Strike("StageRequest", lambda: None)) as steps:
        assert project.sync(hosts).ok
    assert "Instalment" not in steps
    assert is_there(project, job)


@pytest.mark.parametrize("is_after", [False, True])
def test_a_host_agent_that_is_killed_then(
    is_after: bool, project: Project, job: ProcessJob, hosts: HostMesh, faults: list[Any]
) -> None:
    target = hosts._sync_hosts()[1].uid
    victim = job.hosts[1]
    with struck(Strike("Instalment", lambda: kill(victim.pid), target, is_after)):
        report: SyncReport = project.sync(hosts)
    assert not report.ok
    assert "localhost" in str(report) or victim.mesh in str(report)
    assert staged(job) == []  # dropped, as all go or none
    assert not (replica_of(job) / "player.py").exists()
    restart(job, 1)
    again = job.state(cached_path=None).trainers
    wait_for(lambda: project.sync(again).ok, what="a push to all")
    assert [is_there(project, job, index) for index in (0, 1)] == [True, True]


@pytest.mark.long
def test_who_breaks_off_after_the_look_leaves_hosts_free(
    project: Project, job: ProcessJob, hosts: HostMesh, monkeypatch: pytest.MonkeyPatch,
    program: Callable[..., Program],
) -> None:  # fmt: skip
    def break_off(*args: object) -> None:
        assert staged(job)
        raise ConnectionError("the host that lends it went away")

    with monkeypatch.context() as patch:
        patch.setattr(workspace_push, "with_unreadable", break_off)
        with pytest.raises(ConnectionError):
            project.sync(hosts)
    assert [staged(job, index) for index in (0, 1)] == [[], []]
    visitor = program(script({"folder": str(project.root), "urls": job.urls(), "marks": [7]}))
    assert visitor.wait(60) == 0, visitor.story()
    assert visitor.lines == ["pushed 1"]
    assert is_there(project, job)


@pytest.mark.long
@pytest.mark.parametrize("is_after", [False, True])
def test_an_author_that_dies_then_keeps_nobody_waiting(
    is_after: bool, project: Project, job: ProcessJob, hosts: HostMesh,
    program: Callable[..., Program],
) -> None:  # fmt: skip
    order = {"folder": str(project.root), "urls": job.urls(), "marks": [7]}
    visitor = program(script({**order, "step": "Instalment", "is_after": is_after}))
    assert visitor.wait(60) == -signal.SIGKILL, visitor.story()
    report = project.sync(hosts)
    assert report.ok, str(report)
    assert [is_there(project, job, index) for index in (0, 1)] == [True, True]


def test_the_bar_begins_once_hosts_have_said_what_they_lack(project: Project) -> None:
    """The file list that goes first is no part of it: a bar that was full would begin again."""
    node: Any = SimpleNamespace(gate=SimpleNamespace(root="client"))
    shown = Progress()
    with followed_by(shown):
        fleet = HostsInPush(Memory(Workspace({project.root: ""})), node)
    push: Any = SimpleNamespace(bytes_sent=20_000, staged=None)
    hosts = [HostInPush(ProcAddress("host"), push)]
    seen = []
    for num_bytes, brings_content in ((20_000, False), (600_020_000, True), (600_030_000, False)):
        push.bytes_sent = num_bytes
        fleet._show(hosts, brings_content=brings_content)
        seen.append(bar_line(shown, 0, 1.0, 0.0, 80))
    assert seen[0] == "asking hosts what they lack  1.0 s"
    assert [line.split("]")[1] for line in seen[1:]] == ["  0 B of 600 MB"] * 2
