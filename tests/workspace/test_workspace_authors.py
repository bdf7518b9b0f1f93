"""Authors in other processes: killed at any step of a push, and several at once."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import HostMesh, ProcMesh
from monarch.job import ProcessJob
from monarch.runtime import process
from monarch.runtime.answers import Response
from monarch.runtime.client_agent import client
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.session import session_of
from monarch.wire.message import Sync, SyncAnswer, TakeBack
from monarch_sync.messages import (
    AskHistory,
    AskState,
    Commit,
    HistoryReply,
    Message,
    Refused,
    StateReply,
    decode,
    encode,
)
from tests.support import Program, is_running, wait_for
from tests.sync.trees import manifest_of, stage_message
from tests.workspace.author import script
from tests.workspace.conftest import Project, replica_of
from tests.workspace.steps import PLAYER, Stamps, Strike, struck


def _order(folder: Path, job: ProcessJob, marks: list[int], **how: Any) -> str:
    owner = process.current().node.address
    return script(
        {
            "folder": str(folder),
            "urls": job.urls(),
            "owner": [owner.uid, list(owner.urls), owner.machine],
            "marks": marks,
            **how,
        }
    )


def _visit(folder: Path, job: ProcessJob, marks: list[int], **how: Any) -> str:
    return script({"folder": str(folder), "urls": job.urls(), "marks": marks, **how})


def _state(job: ProcessJob, players: Any) -> tuple[int, int]:
    """What all ranks run, which is what all hosts have."""
    values = list(players.stamp.call().get(timeout=60).values())
    assert len(set(values)) == 1, f"ranks differ: {values}"
    files = {(replica_of(job, index) / "player.py").read_text() for index in (0, 1)}
    assert len(files) == 1, "hosts differ"
    assert f"MARK = {values[0][1]}\n" in files.pop(), "code and files differ"
    state: tuple[int, int] = values[0]
    return state


def _procs(project: Project, hosts: HostMesh) -> ProcMesh:
    project.write("player.py", PLAYER)
    procs = hosts.spawn_procs(name="trainers")
    assert project.sync(procs).ok
    return procs


@pytest.mark.long
def test_a_visitor_finds_out_whose_processes_run_on_the_hosts(
    project: Project, job: ProcessJob, hosts: HostMesh, program: Callable[..., Program]
) -> None:
    procs = _procs(project, hosts)
    players: Any = procs.spawn("player", project.load("player").Player)
    number, mark = _state(job, players)
    # The first push finds all hosts as they are to be: nothing is staged, and they are asked.
    visitor = program(_visit(project.root, job, [mark, mark + 1, mark + 1, mark + 2]))
    assert visitor.wait(60) == 0, visitor.story()
    assert visitor.lines == [f"pushed {number + more}" for more in (0, 1, 1, 2)]
    assert _state(job, players) == (number + 2, mark + 2)


@pytest.mark.long
def test_a_visitor_sees_that_somebody_else_has_pushed(
    project: Project, job: ProcessJob, hosts: HostMesh, program: Callable[..., Program]
) -> None:
    """What he would push has not changed for him, and so nothing would be staged."""
    procs = _procs(project, hosts)
    players: Any = procs.spawn("player", project.load("player").Player)
    number, _ = _state(job, players)
    folders = [shutil.copytree(project.root, project.root.parent / f"of{n}") for n in (1, 2)]
    other = _visit(folders[1], job, [6])
    visitor = program(_visit(folders[0], job, [5, 5], between=other))
    assert visitor.wait(90) == 0, visitor.story()
    # In between there was the other's.
    assert visitor.lines == [f"pushed {number + 1}", f"pushed {number + 2}", f"pushed {number + 3}"]
    assert _state(job, players) == (number + 3, 5)


@pytest.mark.long
def test_an_author_killed_at_any_step(
    project: Project, job: ProcessJob, hosts: HostMesh, program: Callable[..., Program]
) -> None:
    procs = _procs(project, hosts)
    players: Any = procs.spawn("player", project.load("player").Player)
    owner = session_of(process.current()).reload
    came: dict[tuple[str, bool], bool] = {}
    steps = ("StageRequest", "prepare", "switch")
    moments = [(step, is_after) for step in steps for is_after in (False, True)]
    for mark, (step, is_after) in enumerate(moments, 1):
        old = _state(job, players)
        stamps = Stamps()
        author = program(_order(project.root, job, [mark], step=step, is_after=is_after))
        assert author.wait(60) == -9, author.story()
        wait_for(lambda: owner.is_idle, 60, what=f"an end of it, {step} {is_after}")
        now = _state(job, players)
        stamps.close()
        stamps.check()
        assert now == old or now[1] == mark
        came[step, is_after] = now != old
    # An owner that was told to switch goes on alone, and before that there is no way on.
    assert came == {moment: moment == ("switch", True) for moment in moments}

    project.edit("player.py", f"MARK = {len(moments)}", "MARK = 99")
    report = project.sync(procs)
    assert report.ok, str(report)
    assert _state(job, players) == (report.generation, 99)


@pytest.mark.long_but(1)
@pytest.mark.parametrize("step", ["fence", "halt", "Commit", "patch"])
def test_an_author_killed_while_the_owner_switches_leaves_the_rest_to_it(
    project: Project,
    job: ProcessJob,
    hosts: HostMesh,
    program: Callable[..., Program],
    step: str,
) -> None:
    procs = _procs(project, hosts)
    players: Any = procs.spawn("player", project.load("player").Player)
    old = _state(job, players)
    owner = session_of(process.current()).reload
    authors: list[Program] = []

    def kill() -> None:
        os.kill(authors[0].pid, signal.SIGKILL)
        wait_for(lambda: not is_running(authors[0].pid), what="its end")

    with struck(Strike(step, kill)):
        authors.append(program(_order(project.root, job, [5])))
        assert authors[0].wait(60) == -9, authors[0].story()
        wait_for(lambda: owner.is_idle, 60, what="an end of it")
    assert _state(job, players) == (old[0] + 1, 5)


def test_questions_are_answered_while_somebody_pushes(job: ProcessJob, hosts: HostMesh) -> None:
    """And do not end that push: whoever asks may be the one who pushes."""
    node, host = process.current().node, client().visit(job.hosts[0].url)

    def say(message: Message) -> Promise[Response[SyncAnswer]]:
        return node.ask(host, Sync(), encode(message), [b"1"])

    stage = stage_message(1, manifest_of({"a": b"1"}), [b"1"])
    node.send(host, Sync(sender="somebody"), encode(stage), [b"1"])
    for question, kind in ((AskState(0), StateReply), (AskHistory(5), HistoryReply)):
        answer = say(question)
        assert answer.wait(20)
        assert isinstance(decode(answer.value.answer.reply), kind)
        refused = say(stage_message(2, manifest_of({"b": b"1"}), [b"1"]))
        assert refused.wait(20)
        reply = decode(refused.value.answer.reply)
        assert isinstance(reply, Refused)
        assert reply.code == "busy"


def test_an_owner_that_goes_back_late_leaves_what_the_next_author_has_staged(
    job: ProcessJob, hosts: HostMesh
) -> None:
    """Its own author has died, so the host is free, and the next push has the same number."""
    node, host = process.current().node, client().visit(job.hosts[0].url)
    stage = stage_message(1, manifest_of({"a": b"1"}), [b"1"])
    node.send(host, Sync(sender="the next"), encode(stage), [b"1"])
    back = node.ask(host, TakeBack(1, "who died"))
    assert back.wait(20)
    assert not back.value.error
    node.send(host, Sync(sender="the next"), encode(Commit(1)))
    wait_for((replica_of(job) / "a").exists, what="the file that the next push has staged")


@pytest.mark.long
def test_several_authors_at_once(
    project: Project,
    job: ProcessJob,
    hosts: HostMesh,
    program: Callable[..., Program],
    tmp_path: Path,
) -> None:
    procs = _procs(project, hosts)
    players: Any = procs.spawn("player", project.load("player").Player)
    stamps = Stamps()
    others = []
    for number in (1, 2):
        folder = tmp_path / f"author{number}"
        shutil.copytree(project.root, folder)
        marks = [100 * number + push for push in range(4)]
        others.append(program(_order(folder, job, marks)))
    ours = []
    for mark in range(301, 305):
        text = (project.root / "player.py").read_text()
        old = text[text.index("MARK = ") :].split("\n")[0]
        project.edit("player.py", old, f"MARK = {mark}")
        report = project.sync(procs)
        assert report.ok, str(report)
        ours.append(report.generation)
        values = list(players.stamp.call().get(timeout=60).values())
        assert len(set(values)) == 1, f"ranks differ: {values}"
    theirs = []
    for author in others:
        assert author.wait(90) == 0, author.story()
        assert all(line.startswith("pushed ") for line in author.lines), author.story()
        theirs += [int(line.split()[1]) for line in author.lines]
    numbers = sorted([*ours, *theirs])
    assert len(set(numbers)) == 12, f"a generation was counted twice: {numbers}"
    generation, _ = _state(job, players)
    assert generation == numbers[-1]
    stamps.close()
    stamps.check()
