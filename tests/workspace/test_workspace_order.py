"""All ranks switch between the same two messages, whatever else is going on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Channel, this_host
from monarch_sync import Workspace
from tests.support import wait_for
from tests.workspace.conftest import Project


def test_no_call_sees_two_generations(project: Project) -> None:
    project.write("stamps.py", STAMPS)
    procs = this_host().spawn_procs({"gpus": 4}, name="trainers")
    project.sync(procs)
    stampers: Any = procs.spawn("stamper", project.load("stamps").Stamper)
    seen: list[list[tuple[int, int]]] = []
    is_over = threading.Event()
    failed: list[BaseException] = []

    def cast() -> None:
        try:
            while not is_over.is_set():
                seen.append(list(stampers.stamp.call().get(timeout=30).values()))
        except BaseException as error:
            failed.append(error)

    caster = threading.Thread(target=cast)
    caster.start()
    try:
        for number in range(1, 11):
            start = len(seen)
            wait_for(lambda start=start: len(seen) > start or failed, what="a call between edits")
            project.edit("stamps.py", f"MARK = {number - 1}", f"MARK = {number}")
            assert project.sync(procs).ok
    finally:
        is_over.set()
        caster.join(30)
    assert not failed
    seen.append(list(stampers.stamp.call().get(timeout=30).values()))
    assert all(len(set(stamps)) == 1 for stamps in seen)
    order = [stamps[0] for stamps in seen]
    assert order == sorted(order)
    assert order[-1][1] == 10
    # Code and generation belong together.
    assert all(generation - mark == order[0][0] for generation, mark in order)


STAMPS = """
from monarch.actor import Actor, context, endpoint

MARK = 0


class Stamper(Actor):
    @endpoint
    def stamp(self):
        return context().generation, MARK
"""

BUSY = """
import threading
from pathlib import Path

from monarch.actor import Actor, Channel, endpoint

ANSWER = 1


class Oracle(Actor):
    @endpoint
    def ask(self):
        return ANSWER


class Busy(Actor):
    def __init__(self, oracle):
        self.oracle = oracle

    @endpoint
    def work(self, started):
        gate, wait = Channel.open()
        started.send(gate)
        wait.recv().get(timeout=60)
        return self.oracle.ask.call_one().get(timeout=30), ANSWER

    @endpoint
    def answer(self):
        return ANSWER
"""


def test_a_busy_actor_may_ask_one_that_waits_for_the_switch(project: Project) -> None:
    project.write("busy.py", BUSY)
    procs = this_host().spawn_procs(name="trainers")
    project.sync(procs)
    module = project.load("busy")
    oracle: Any = procs.spawn("oracle", module.Oracle)
    busy: Any = procs.spawn("busy", module.Busy, oracle)
    port, started = Channel.open()
    working = busy.work.call_one(port)
    gate = started.recv().get(timeout=30)

    project.edit("busy.py", "ANSWER = 1", "ANSWER = 2")
    reports: list[Any] = []
    pusher = threading.Thread(target=lambda: reports.append(project.sync(procs)))
    pusher.start()
    # The oracle is at the fence once it lets nothing of ours through.
    wait_for(lambda: not _answers(oracle), what="the fence")
    assert not reports
    gate.send(None)
    assert working.get(timeout=30) == (1, 1), "an endpoint ends on the code it began with"
    pusher.join(30)
    assert reports[0].ok
    assert oracle.ask.call_one().get(timeout=30) == 2
    assert busy.answer.call_one().get(timeout=30) == 2


def _answers(oracle: Any) -> bool:
    try:
        oracle.ask.call_one().get(timeout=0.2)
    except TimeoutError:
        return False
    return True


@pytest.mark.long
def test_generations_of_two_workspaces_count_together(project: Project, tmp_path: Path) -> None:
    procs = this_host().spawn_procs(name="trainers")
    first = project.sync(procs).generation
    other = tmp_path / "other"
    other.mkdir()
    (other / "gadgets.py").write_text("SIZE = 1\n")
    project.workspace = Workspace(dirs={other: ""})
    assert project.sync(procs).generation >= first
    project.workspace = Workspace(dirs={project.root: ""})
    stepper: Any = procs.spawn("stepper", project.load("stepper").Stepper)
    stepper.stamp.call_one().get(timeout=30)  # It is imported from where it is edited next.
    project.edit("stepper.py", "SCALE = 1", "SCALE = 2")
    report = project.sync(procs)
    assert report.generation > first
    assert stepper.stamp.call_one().get(timeout=30) == (report.generation, 2)
