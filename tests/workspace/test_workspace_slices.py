"""Pushes to a slice: what runs elsewhere goes on as it was, and no call meets both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import HostMesh, ProcMesh, this_host
from monarch.errors import GenerationBehind
from monarch_sync import Workspace
from tests.workspace.conftest import Project
from tests.workspace.steps import CALLER, PLAYER, Strike, struck


def _edit(project: Project, mark: int) -> None:
    project.write("player.py", PLAYER.replace("MARK = 0", f"MARK = {mark}"))


def _marks(players: Any) -> list[int]:
    return [mark for _, mark in players.stamp.call().get(timeout=30).values()]


@pytest.fixture
def trainers(project: Project, hosts: HostMesh) -> tuple[ProcMesh, Any]:
    """Players on two hosts, all of one state."""
    _edit(project, 0)
    procs = hosts.spawn_procs(name="trainers")
    assert project.sync(procs).ok
    return procs, procs.spawn("player", project.load("player").Player)


WAYS: dict[str, Callable[[Any], object]] = {
    "call": lambda players: players.stamp.call().get(timeout=30),
    "stream": lambda players: [one.get(timeout=30) for one in players.stamp.stream()],
    "broadcast": lambda players: players.stamp.broadcast(),
}


def test_the_whole_cannot_be_called_until_all_are_one_again(
    project: Project, trainers: tuple[ProcMesh, Any]
) -> None:
    procs, players = trainers
    [(old, _), _] = players.stamp.call().get(timeout=30).values()
    _edit(project, 1)
    report = project.sync(procs.slice(hosts=0))
    assert report.ok, str(report)
    assert _marks(players.slice(hosts=0)) == [1]
    assert _marks(players.slice(hosts=1)) == [0]
    for way in WAYS.values():
        with pytest.raises(GenerationBehind, match=r"player\{'hosts': 1/2\} runs generation") as it:
            way(players)
        assert (it.value.runs, it.value.wanted) == (old, report.generation)
    assert project.sync(procs.slice(hosts=1)).ok
    assert _marks(players) == [1, 1]


@pytest.mark.long
def test_actors_are_refused_too_whenever_they_were_made(
    project: Project, trainers: tuple[ProcMesh, Any]
) -> None:
    procs, players = trainers
    project.write("caller.py", CALLER)
    assert project.sync(procs).ok
    cls = project.load("caller").Caller
    homes = [this_host().spawn_procs(name="before")]
    _edit(project, 1)
    assert project.sync(procs.slice(hosts=0)).ok
    homes += [this_host().spawn_procs(name="after"), procs.slice(hosts=0), procs.slice(hosts=1)]
    callers: list[Any] = [home.spawn("caller", cls) for home in homes]
    for caller in callers:
        said = caller.ask.call_one(players).get(timeout=30)
        assert "player{'hosts': 1/2} runs generation" in str(said)
        assert caller.ask.call_one(players.slice(hosts=1)).get(timeout=30) == [0]
    assert project.sync(procs).ok
    for caller in callers:
        assert caller.ask.call_one(players).get(timeout=30) == [1, 1]


def test_procs_that_give_way_to_new_ones_know_of_it(
    project: Project, trainers: tuple[ProcMesh, Any]
) -> None:
    procs, players = trainers
    project.write("caller.py", CALLER)
    assert project.sync(procs).ok
    caller: Any = procs.slice(hosts=0).spawn("caller", project.load("caller").Caller)
    _edit(project, 1)
    report = project.sync(procs.slice(hosts=0), reload="respawn")
    assert report.ok, str(report)
    assert report.procs_respawned
    assert "hosts': 1/2" in str(caller.ask.call_one(players).get(timeout=30))
    assert caller.ask.call_one(players.slice(hosts=0)).get(timeout=30) == [1]


def test_slices_with_workspaces_of_their_own_have_nothing_to_agree_on(
    project: Project, hosts: HostMesh, tmp_path: Path
) -> None:
    _edit(project, 1)
    procs = hosts.spawn_procs(name="trainers")
    other = tmp_path / "other"
    other.mkdir()
    (other / "player.py").write_text(PLAYER.replace("MARK = 0", "MARK = 2"))
    assert project.sync(procs.slice(hosts=0)).ok
    report = procs.slice(hosts=1).sync_workspace(Workspace(dirs={other: ""})).get(timeout=30)
    assert report.ok, str(report)
    players = procs.spawn("player", project.load("player").Player)
    assert _marks(players) == [1, 2]
    _edit(project, 3)
    assert project.sync(procs.slice(hosts=0)).ok
    assert _marks(players) == [3, 2]


def test_procs_that_are_made_later_begin_on_one_state(project: Project, hosts: HostMesh) -> None:
    _edit(project, 0)
    assert project.sync(hosts).ok
    project.write("caller.py", CALLER)
    assert project.sync(hosts).ok
    home: Any = this_host().spawn_procs().spawn("caller", project.load("caller").Caller)
    _edit(project, 1)
    assert project.sync(hosts.slice(hosts=0)).ok
    procs = hosts.spawn_procs(name="trainers")  # the second host is brought along
    players = procs.spawn("player", project.load("player").Player)
    assert _marks(players) == [1, 1]
    assert home.ask.call_one(players).get(timeout=30) == [1, 1]
    _edit(project, 2)
    assert project.sync(procs.slice(hosts=1)).ok
    with pytest.raises(GenerationBehind, match="hosts': 0/2"):
        _marks(players)
    assert "hosts': 0/2" in home.ask.call_one(players).get(timeout=30)


def test_a_push_that_is_refused_divides_nobody(
    project: Project, trainers: tuple[ProcMesh, Any]
) -> None:
    procs, players = trainers
    project.write("player.py", "def broken(:\n")
    report = project.sync(procs.slice(hosts=0))
    assert not report.ok
    assert _marks(players) == [0, 0]


@pytest.mark.long
def test_a_call_that_is_under_way_meets_one_code_or_is_refused(
    project: Project, trainers: tuple[ProcMesh, Any]
) -> None:
    """It is sent when all stand still, and would be run once they have switched."""
    procs, players = trainers
    _edit(project, 1)
    sent: list[Any] = []

    def call() -> None:
        sent.append(players.stamp.call())
        sent.append(players.slice(hosts=1).stamp.call_one())

    with struck(Strike("patch", call)):
        report = project.sync(procs.slice(hosts=0))
    assert report.ok, str(report)
    with pytest.raises(GenerationBehind, match="which went to a part of this mesh"):
        sent[0].get(timeout=30)
    assert sent[1].get(timeout=30)[1] == 0
    assert project.sync(procs).ok
    assert _marks(players) == [1, 1]
