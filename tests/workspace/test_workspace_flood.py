"""A switch of code keeps its place among messages that wait for a slow actor."""

from __future__ import annotations

import threading
from typing import Any

from monarch.actor import Channel, this_host
from monarch.config import configured
from monarch.runtime import process
from tests.support import wait_for
from tests.workspace.conftest import Project
from tests.workspace.meeting import driven

WINDOW = 32
MANY = 5 * WINDOW

NOTES = """
from monarch.actor import Actor, Channel, endpoint

MARK = 1


class Noter(Actor):
    def __init__(self):
        self.seen = []

    @endpoint
    def pause(self, started):
        gate, wait = Channel.open()
        started.send(gate)
        wait.recv().get(timeout=60)

    @endpoint
    def note(self, number):
        self.seen.append((number, MARK))

    @endpoint
    def mark(self):
        return MARK

    @endpoint
    def read(self):
        return self.seen
"""


def test_what_waits_for_a_slow_actor_still_runs_on_the_code_it_was_sent_for(
    project: Project,
) -> None:
    with configured(flow_window_messages=WINDOW, flow_patience_seconds=0.05):
        project.write("notes.py", NOTES)
        procs = this_host().spawn_procs(name="trainers")
        project.sync(procs)
        module = project.load("notes")
        slow: Any = procs.spawn("slow", module.Noter)
        quick: Any = procs.spawn("quick", module.Noter)
        quick.note.call_one(0).get(timeout=30)
        port, started = Channel.open()
        slow.pause.broadcast(port)
        gate = started.recv().get(timeout=30)
        for number in range(MANY):
            slow.note.broadcast(number)
        boxes = process.current().node.outgoing._boxes[slow._ref.proc_uids[0]]
        assert boxes[slow._ref.uid].is_spilling

        project.edit("notes.py", "MARK = 1", "MARK = 2")
        reports: list[Any] = []
        pusher = threading.Thread(target=lambda: reports.append(project.sync(procs)))
        pusher.start()
        wait_for(lambda: boxes[slow._ref.uid]._stops, what="the switch has been sent")
        for number in range(MANY, MANY + 5):
            slow.note.broadcast(number)
            quick.note.broadcast(number)
        assert not reports
        gate.send(None)
        pusher.join(30)
        assert reports[0].ok
        assert slow.read.call_one().get(timeout=30) == [
            *((number, 1) for number in range(MANY)),
            *((number, 2) for number in range(MANY, MANY + 5)),
        ]
        later = [(number, 2) for number in range(MANY, MANY + 5)]
        assert quick.read.call_one().get(timeout=30) == [(0, 1), *later]
        wait_for(lambda: not process.current().node.outgoing.is_spilling)


def test_a_flood_in_front_of_a_switch_holds_others_up_for_a_while_only(project: Project) -> None:
    with configured(flow_window_messages=WINDOW, flow_patience_seconds=0.05):
        project.write("notes.py", NOTES)
        procs = this_host().spawn_procs(name="trainers")
        project.sync(procs)
        module = project.load("notes")
        slow: Any = procs.spawn("slow", module.Noter)
        quick: Any = procs.spawn("quick", module.Noter)
        port, started = Channel.open()
        slow.pause.broadcast(port)
        gate = started.recv().get(timeout=30)
        for number in range(MANY):
            slow.note.broadcast(number)
        outgoing = process.current().node.outgoing
        assert outgoing.is_spilling
        stops = outgoing._boxes[slow._ref.proc_uids[0]][slow._ref.uid]._stops

        project.edit("notes.py", "MARK = 1", "MARK = 2")
        reports: list[Any] = []
        pusher = threading.Thread(target=lambda: reports.append(project.sync(procs)))
        pusher.start()
        with driven(lambda: quick.mark.call_one().get(timeout=60)) as [calls]:
            for number in (1, 2, 3):
                wait_for(lambda n=number: len(stops) >= n, what="the switch was sent again")
                calls.is_going_on(2)
            assert not reports
            assert calls.answers[-1] == 1
            gate.send(None)
            pusher.join(30)
            assert reports[0].ok
            calls.is_going_on(2)
            assert calls.answers[-1] == 2
        assert slow.read.call_one().get(timeout=30) == [(number, 1) for number in range(MANY)]
        wait_for(lambda: not outgoing.is_spilling)
