"""Hosts that come late or back, and procs that are made in the middle of a push."""

from __future__ import annotations

import os
import shutil
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.actor import HostMesh, SupervisionError
from monarch.job import ProcessJob
from monarch.runtime import process
from monarch.runtime.workspace.pushing.hosts_in_push import HostsInPush
from monarch.runtime.workspace.pushing.memory import Memory
from monarch.runtime.workspace.session import session_of
from monarch.wire.address import ProcAddress
from monarch_sync import Manifest, Workspace
from monarch_sync.content.disk import Disk
from monarch_sync.replicas.state_log import StateLog
from tests.support import wait_for
from tests.workspace.conftest import Project, replica_of, restart, state_of
from tests.workspace.steps import PLAYER, STEPS, Stamps, Strike, struck


def _edit(project: Project, mark: int) -> None:
    project.write("player.py", PLAYER.replace("MARK = 0", f"MARK = {mark}"))


def _stamps(project: Project, hosts: HostMesh, name: str = "later") -> list[tuple[int, int]]:
    """What procs that are made now begin with."""
    players: Any = hosts.spawn_procs(name=name).spawn("player", project.load("player").Player)
    return list(players.stamp.call().get(timeout=60).values())


@pytest.mark.long_but(1)
@pytest.mark.parametrize("folder", ["kept", "lost", "from a push ago"])
def test_a_host_that_is_back_is_brought_up_before_anything_runs_on_it(
    folder: str, project: Project, job: ProcessJob, hosts: HostMesh, faults: list[Any]
) -> None:
    _edit(project, 1)
    project.workspace = Workspace(dirs={project.root: "app"})
    assert project.sync(hosts).ok
    early = f"{replica_of(job, 1)}.early"
    shutil.copytree(replica_of(job, 1), early)
    _edit(project, 2)
    report = project.sync(hosts)
    assert report.ok
    # Before that, it would find its last commit cut short, and see to the files for that alone.
    wait_for(lambda: StateLog(state_of(job, 1), Disk()).interrupted is None)

    def meanwhile() -> None:
        if folder != "kept":
            shutil.rmtree(replica_of(job, 1))
        if folder == "from a push ago":
            os.rename(early, replica_of(job, 1))

    restart(job, 1, meanwhile)
    stamps = _stamps(project, hosts)
    assert [mark for _, mark in stamps] == [2, 2]
    assert len(set(stamps)) == 1, "a mesh of two generations"
    texts = {(replica_of(job, index) / "app/player.py").read_text() for index in (0, 1)}
    assert texts == {(project.root / "player.py").read_text()}
    # What has come back follows like any other.
    _edit(project, 3)
    again = project.sync(hosts)
    assert again.ok, str(again)
    assert _stamps(project, hosts, "latest") == [(again.generation, 3)] * 2


def test_a_push_notices_that_a_host_has_been_away(
    project: Project, job: ProcessJob, hosts: HostMesh, faults: list[Any]
) -> None:
    _edit(project, 1)
    first = project.sync(hosts)
    restart(job, 0, lambda: shutil.rmtree(replica_of(job)))
    again = project.sync(hosts)
    assert again.ok, str(again)
    assert again.generation == first.generation + 1
    assert (replica_of(job) / "player.py").exists()
    assert again.hosts[0].num_written == first.hosts[0].num_written


def test_procs_for_a_state_that_nobody_can_bring_are_refused_by_name(
    project: Project, job: ProcessJob, hosts: HostMesh, faults: list[Any]
) -> None:
    _edit(project, 1)
    assert project.sync(hosts).ok
    restart(job, 1, lambda: shutil.rmtree(replica_of(job, 1)))
    # As if another program had pushed.
    authors = session_of(process.current())._authors
    for author in authors.values():
        author.close()
    authors.clear()
    procs = hosts.spawn_procs(name="later")
    with pytest.raises(SupervisionError, match="generation 0 of the workspace") as refused:
        procs.initialized.get(timeout=60)
    assert "push the workspace" in str(refused.value)
    assert not (replica_of(job, 1) / "player.py").exists()


@pytest.mark.long
def test_procs_made_in_the_middle_of_a_push_are_of_one_generation(
    project: Project, job: ProcessJob, hosts: HostMesh
) -> None:
    _edit(project, 0)
    assert project.sync(hosts).ok
    project.load("player")
    for mark, step in enumerate(STEPS, 1):
        born: list[list[tuple[int, int]]] = []
        maker = threading.Thread(
            target=lambda found=born, name=f"in{step}": found.append(_stamps(project, hosts, name))  # type: ignore[misc]
        )
        players: Any = hosts.spawn_procs(name=f"before{step}").spawn(
            "player", project.load("player").Player
        )
        stamps = Stamps()
        _edit(project, mark)
        with struck(Strike(step, maker.start)):
            report = project.sync(hosts)
        assert report.ok, f"{step}: {report}"
        maker.join(60)
        assert len(born) == 1, f"{step}: nothing was made"
        assert len(set(born[0])) == 1, f"{step}: a mesh of two generations: {born}"
        generation, begun_with = born[0][0]
        assert begun_with == mark - (report.generation - generation), f"{step}: {born}"
        assert (
            list(players.stamp.call().get(timeout=60).values()) == [(report.generation, mark)] * 2
        )
        stamps.close()
        stamps.check()
        hosts.stop().get(timeout=60)


def test_a_host_that_is_forgotten_as_a_push_begins_is_named(project: Project) -> None:
    node: Any = SimpleNamespace(gate=SimpleNamespace(root="client"))
    fleet = HostsInPush(Memory(Workspace({project.root: ""})), node)
    assert fleet.hosts([ProcAddress("host")], Manifest()) == []
    assert fleet.failed == {"host": "it was lost as the push began"}
