"""A proc or a host agent that is killed at any step of a push: the others go on together."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import HostMesh
from monarch.config import runtime_dir
from monarch.job import ProcessJob
from monarch_sync import SyncReport
from tests.support import is_running, wait_for
from tests.workspace.conftest import Project, replica_of
from tests.workspace.steps import PLAYER, STEPS, Strike, struck

MOMENTS = [(step, is_after) for step in STEPS for is_after in (False, True)]
OF_PROCS = [(s, after) for s, after in MOMENTS if s not in ("StageRequest", "Commit")]


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_running(pid), what="the end")


def _edit(project: Project, mark: int) -> None:
    project.write("player.py", PLAYER.replace("MARK = 0", f"MARK = {mark}"))


def _outcome(work: Callable[[], SyncReport]) -> Any:
    try:
        return work()
    except Exception as error:
        return error


def _together(survivors: Any, files: list[str], old: tuple[int, int], mark: int) -> bool:
    """Whether those that are left run the new code, all of them, or the old; with its files."""
    values = list(survivors.stamp.call().get(timeout=60).values())
    assert len(set(values)) == 1, f"they differ: {values}"
    now = values[0]
    assert now == old or now[1] == mark, f"neither old nor new: {now}"
    assert [f"MARK = {now[1]}\n" in text for text in files] == [True] * len(files), "files differ"
    return now != old


@pytest.mark.long
def test_a_proc_killed_at_any_step(
    project: Project, job: ProcessJob, hosts: HostMesh, faults: list[Any]
) -> None:
    _edit(project, 0)
    project.sync(hosts)
    player = project.load("player").Player
    for mark, (step, is_after) in enumerate(OF_PROCS, 1):
        procs = hosts.spawn_procs({"gpus": 2}, name="trainers")
        players: Any = procs.spawn("player", player)
        pids = list(players.pid.call().get(timeout=60).values())
        old = next(iter(players.stamp.call().get(timeout=60).values()))
        victim = procs._procs[3].uid
        _edit(project, mark)
        with struck(Strike(step, lambda pid=pids[3]: _kill(pid), victim, is_after)):  # type: ignore[misc]
            report = project.sync(procs)
        files = [(replica_of(job, index) / "player.py").read_text() for index in (0, 1)]
        is_new = _together(players.slice(hosts=0), files, old, mark)
        assert _together(players.slice(hosts=1, gpus=0), files, old, mark) == is_new
        assert is_new == report.ok, f"{step} {is_after}: {report}"
        procs.stop().get(timeout=30)
        again = project.sync(hosts)
        assert again.ok, f"{step} {is_after}: {again}"


@pytest.mark.long_but(2)
@pytest.mark.parametrize(("step", "is_after"), MOMENTS)
def test_a_host_agent_killed_at_any_step(
    step: str,
    is_after: bool,
    project: Project,
    job: ProcessJob,
    hosts: HostMesh,
    faults: list[Any],
) -> None:
    _edit(project, 0)
    procs = hosts.spawn_procs({"gpus": 2}, name="trainers")
    project.sync(procs)
    players: Any = procs.spawn("player", project.load("player").Player)
    old = next(iter(players.stamp.call().get(timeout=60).values()))
    host = procs._procs[3]
    _edit(project, 1)
    # Steps of procs are sent to one of those on the host.
    target = host.host_uid if step in ("StageRequest", "Commit") else host.uid
    with struck(Strike(step, lambda: _kill(job.hosts[1].pid), target, is_after)):
        outcome = _outcome(lambda: project.sync(procs))
    survivors = players.slice(hosts=0)
    is_new = _together(survivors, [(replica_of(job) / "player.py").read_text()], old, 1)
    assert is_new == (isinstance(outcome, SyncReport) and outcome.ok), f"{outcome}"

    # Those that are left can be pushed to.
    _edit(project, 2)
    left = procs.slice(hosts=0)
    report = project.sync(left)
    assert report.ok, str(report)
    assert list(survivors.stamp.call().get(timeout=60).values()) == [(report.generation, 2)] * 2

    for sockets in Path(runtime_dir()).glob(f"*-{job.hosts[1].pid}-*"):
        shutil.rmtree(sockets)  # as the next program's sweep would
