"""A switch of code keeps its place among messages that wait for a slow actor."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import Channel, this_host
from monarch.config import configured
from monarch.runtime import process
from monarch.runtime.workspace.session import session_of
from monarch_sync import SyncReport
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


class Flood:
    """A slow actor, with more before it than a window holds, and a quick one; then a push."""

    def __init__(self, project: Project) -> None:
        self._project = project
        project.write("notes.py", NOTES)
        self._procs = this_host().spawn_procs(name="trainers")
        project.sync(self._procs)
        noter = project.load("notes").Noter
        self.slow: Any = self._procs.spawn("slow", noter)
        self.quick: Any = self._procs.spawn("quick", noter)
        self.quick.note.call_one(0).get(timeout=30)
        port, started = Channel.open()
        self.slow.pause.broadcast(port)
        self._gate = started.recv().get(timeout=30)
        for number in range(MANY):
            self.slow.note.broadcast(number)
        outgoing = process.current().node.outboxes
        box = outgoing._boxes[self.slow._ref.proc_uids[0]][self.slow._ref.uid]
        assert box.is_spilling
        self.stops = box._stops
        self.reports: list[SyncReport] = []
        self._pusher = threading.Thread(target=self._push)

    def _push(self) -> None:
        self.reports.append(self._project.sync(self._procs))

    def push(self) -> None:
        self._project.edit("notes.py", "MARK = 1", "MARK = 2")
        self._pusher.start()

    def end_push(self) -> None:
        """The slow actor goes on, and with it the push."""
        assert not self.reports
        self._gate.send(None)
        self._pusher.join(30)
        assert self.reports[0].ok

    def seen_slowly(self) -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = self.slow.read.call_one().get(timeout=30)
        wait_for(lambda: not process.current().node.outboxes.is_spilling)
        return seen


@pytest.fixture
def flood(project: Project) -> Iterator[Flood]:
    with configured(flow_window_messages=WINDOW, flow_patience_seconds=0.05):
        yield Flood(project)


def test_what_waits_for_a_slow_actor_still_runs_on_the_code_it_was_sent_for(
    flood: Flood, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is sent behind a fence that is lifted runs on the old code: this one is not.
    monkeypatch.setattr(session_of(process.current()).reload, "fence_seconds", 60.0)
    flood.push()
    wait_for(lambda: flood.stops, what="the switch has been sent")
    for number in range(MANY, MANY + 5):
        flood.slow.note.broadcast(number)
        flood.quick.note.broadcast(number)
    flood.end_push()
    later = [(number, 2) for number in range(MANY, MANY + 5)]
    assert flood.seen_slowly() == [*((number, 1) for number in range(MANY)), *later]
    assert flood.quick.read.call_one().get(timeout=30) == [(0, 1), *later]


@pytest.mark.long
def test_a_flood_in_front_of_a_switch_holds_others_up_for_a_while_only(flood: Flood) -> None:
    flood.push()
    with driven(lambda: flood.quick.mark.call_one().get(timeout=60)) as [calls]:
        for number in (1, 2, 3):
            wait_for(lambda n=number: len(flood.stops) >= n, what="the switch was sent again")
            calls.is_going_on(2)
        assert calls.answers[-1] == 1
        flood.end_push()
        calls.is_going_on(2)
        assert calls.answers[-1] == 2
    assert flood.seen_slowly() == [(number, 1) for number in range(MANY)]
