"""Hosts that cannot follow: waited for no longer than sense allows, and left behind if so asked."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Channel, HostMesh, ProcMesh
from monarch.config import configured
from monarch.errors import GenerationBehind
from monarch.job import ProcessJob
from monarch.runtime import process
from monarch.runtime.workspace.session import session_of
from tests.support import wait_for
from tests.workspace.conftest import Project, replica_of
from tests.workspace.steps import CALLER, PLAYER, Stamps, Strike, struck

QUICK_SECONDS = 2.0  # A host that is only busy answers within that.

BUSY = """
from monarch.actor import Actor, Channel, endpoint

ANSWER = 1


class Busy(Actor):
    @endpoint
    def work(self, started):
        gate, wait = Channel.open()
        started.send(gate)
        wait.recv().get(timeout=60)
"""


def all_stopped(pid: int) -> bool:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    try:
        stats = [task.joinpath("stat").read_text() for task in tasks]
    except OSError:
        return False  # One of its threads has just ended.
    return all(stat.rpartition(") ")[2][0] == "T" for stat in stats)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that hangs, within the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        # One of its threads takes the signal; until it does, the others go on.
        wait_for(lambda: all_stopped(pid), 10.0, "the process to stop")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _edit(project: Project, mark: int) -> None:
    project.write("player.py", PLAYER.replace("MARK = 0", f"MARK = {mark}"))


def _players(project: Project, hosts: HostMesh) -> tuple[ProcMesh, Any]:
    _edit(project, 0)
    procs = hosts.spawn_procs(name="trainers")
    assert project.sync(procs).ok
    return procs, procs.spawn("player", project.load("player").Player)


@pytest.mark.long
def test_a_host_that_hangs_does_not_hold_a_push_for_ever(
    project: Project, job: ProcessJob, hosts: HostMesh
) -> None:
    procs, players = _players(project, hosts)
    old = list(players.stamp.call().get(timeout=60).values())
    _edit(project, 1)
    with configured(host_answer_seconds=QUICK_SECONDS), stopped(job.hosts[1].pid):
        refused = project.sync(procs)
    assert not refused.ok
    assert "trainers1: it hangs: neither the push nor a question was answered" in str(refused)
    assert list(players.stamp.call().get(timeout=60).values()) == old
    assert "MARK = 0" in (replica_of(job) / "player.py").read_text()
    mended = project.sync(procs)
    assert mended.ok, str(mended)
    assert list(players.stamp.call().get(timeout=60).values()) == [(mended.generation, 1)] * 2


@pytest.mark.long
def test_best_effort_goes_on_without_a_host_and_its_ranks_refuse_by_name(
    project: Project, job: ProcessJob, hosts: HostMesh
) -> None:
    procs, players = _players(project, hosts)
    stamps = Stamps()
    [(old, _), _] = players.stamp.call().get(timeout=60).values()
    _edit(project, 1)
    with configured(host_answer_seconds=QUICK_SECONDS), stopped(job.hosts[1].pid):
        report = project.sync(procs, best_effort=True)
    assert report.ok
    [_, left] = report.hosts
    assert left.host == "trainers1"
    assert "hangs" in left.error
    assert "trainers1: it hangs" in str(report)
    assert players.slice(hosts=0).stamp.call_one().get(timeout=60) == (report.generation, 1)
    with pytest.raises(GenerationBehind, match=f"generation {old} of the workspace") as behind:
        players.stamp.call().get(timeout=60)
    assert "hosts': 1/2" in str(behind.value)
    assert (behind.value.runs, behind.value.wanted) == (old, report.generation)
    assert stamps.seen() == {old, report.generation}

    # It catches up with the next push, whether anything has changed or not.
    again = project.sync(procs)
    assert again.ok, str(again)
    assert players.stamp.call().get(timeout=60).values() == [(again.generation, 1)] * 2
    stamps.close()


@pytest.mark.long
@pytest.mark.parametrize("step", ["StageRequest", "Commit"])
def test_a_rank_that_is_left_behind_does_not_call_those_ahead_and_others(
    project: Project, job: ProcessJob, hosts: HostMesh, step: str
) -> None:
    procs, players = _players(project, hosts)
    project.write("caller.py", CALLER)
    assert project.sync(procs).ok
    caller: Any = procs.slice(hosts=1).spawn("caller", project.load("caller").Caller)
    answers, said = Channel.open()
    whole, own = [players, players.slice(hosts=1)]
    ask_whole, ask_own = [
        caller.ask_later.call_one(mesh, answers).get(timeout=60) for mesh in (whole, own)
    ]
    _edit(project, 1)
    host = hosts.slice(hosts=1)._hosts[0].address.uid
    with ExitStack() as until_it_goes_on, configured(host_answer_seconds=QUICK_SECONDS):
        stop = Strike(step, lambda: until_it_goes_on.enter_context(stopped(job.hosts[1].pid)), host)
        with struck(stop):
            report = project.sync(procs, best_effort=True)
    assert report.ok, str(report)
    ask_whole.send(None)
    assert "player{'hosts': 1/2} runs generation" in str(said.recv().get(timeout=60))
    ask_own.send(None)
    assert said.recv().get(timeout=60) == [0]

    assert project.sync(procs).ok
    assert caller.ask.call_one(players).get(timeout=60) == [1, 1]


@pytest.mark.long
def test_a_host_that_hangs_at_the_commit_is_left_behind_with_what_runs_on_it(
    project: Project, job: ProcessJob, hosts: HostMesh
) -> None:
    procs, players = _players(project, hosts)
    [(old, _), _] = players.stamp.call().get(timeout=60).values()
    _edit(project, 1)
    host = hosts.slice(hosts=1)._hosts[0].address.uid
    with ExitStack() as until_it_goes_on, configured(host_answer_seconds=QUICK_SECONDS):
        stop = Strike(
            "Commit", lambda: until_it_goes_on.enter_context(stopped(job.hosts[1].pid)), host
        )
        with struck(stop):
            report = project.sync(procs, best_effort=True)
    assert report.ok
    assert "trainers1: it hangs" in str(report)
    assert players.slice(hosts=0).stamp.call_one().get(timeout=60) == (report.generation, 1)
    with pytest.raises(GenerationBehind, match=f"generation {old} of the workspace"):
        players.stamp.call().get(timeout=60)
    again = project.sync(procs)
    assert again.ok, str(again)
    assert players.stamp.call().get(timeout=60).values() == [(again.generation, 1)] * 2


@pytest.mark.long
def test_a_push_says_whom_it_waits_for(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("busy.py", BUSY)
    from monarch.actor import this_host

    procs = this_host().spawn_procs({"gpus": 4}, name="trainers")
    project.sync(procs)
    busy: Any = procs.spawn("busy", project.load("busy").Busy)
    port, started = Channel.open()
    some = busy.slice(gpus=slice(1, 4))
    working = some.work.call(port)
    gates = [started.recv().get(timeout=30) for _ in range(3)]
    said: list[str] = []
    switch = session_of(process.current()).reload
    switch.on_waiting = said.append
    gathered = switch._actions.busy
    # The procs say it each by its own clock; they are waited for here until all have.
    monkeypatch.setattr(gathered, "gather_seconds", 600.0)
    project.edit("busy.py", "ANSWER = 1", "ANSWER = 2")
    pusher = threading.Thread(target=lambda: said.append(str(project.sync(procs).ok)))
    pusher.start()
    (told,) = wait_for(
        lambda: [about for about, busy in gathered._gathered.items() if len(busy) == 3],
        what="a word of each about it",
    )
    gathered._say(*told)
    for gate in gates:
        gate.send(None)
    working.get(timeout=30)
    pusher.join(60)
    line, went_well = said
    assert line.partition(" waits for ")[2] == "busy 1-3 (in 'work'), for 3 s"
    assert went_well == "True"
