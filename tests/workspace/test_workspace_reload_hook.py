"""`__reload__`: actors hear of new code and of config files, and may refuse it for all."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from monarch.actor import Channel, HostMesh, ProcMesh, this_host
from monarch.config import configured
from monarch.runtime import process
from monarch.runtime.workspace.session import session_of
from tests.support import wait_for
from tests.workspace.conftest import Project
from tests.workspace.steps import wait_for_fence

HOOKED = """
import os
import time
import threading
from pathlib import Path

from monarch.actor import Actor, Channel, context, current_rank, endpoint

LEVEL = 1
ORDER = []
FORBIDDEN = 13
HANGS = 99


class Plain(Actor):
    def __init__(self, name):
        self.name = name
        self.heard = []
        self.level = LEVEL

    def __reload__(self, change):
        if LEVEL == FORBIDDEN and current_rank().rank == 1:
            raise ValueError(f"level {LEVEL} is not for {self.name}")
        if LEVEL == HANGS and current_rank().rank == 1:
            threading.Event().wait(30)
        ORDER.append(self.name)
        self.level = LEVEL
        self.heard.append((LEVEL, change.undone, threading.current_thread().name))

    @endpoint
    def read(self):
        return self.level, LEVEL, context().generation

    @endpoint
    def told(self):
        return self.heard

    @endpoint
    def order(self):
        return ORDER


class Async(Actor):
    def __init__(self, name):
        self.name = name
        self.heard = []
        self.level = LEVEL

    async def __reload__(self, change):
        import asyncio

        await asyncio.sleep(0)
        if LEVEL == FORBIDDEN and current_rank().rank == 1:
            raise ValueError(f"level {LEVEL} is not for {self.name}")
        if LEVEL == HANGS and current_rank().rank == 1:
            await asyncio.sleep(30)
        ORDER.append(self.name)
        self.level = LEVEL
        self.heard.append((LEVEL, change.undone, ""))

    @endpoint
    async def read(self):
        return self.level, LEVEL, context().generation

    @endpoint
    async def told(self):
        return self.heard

    @endpoint
    async def order(self):
        return ORDER
"""


def _values(endpoint: Any, *args: Any) -> list[Any]:
    return list(endpoint.call(*args).get(timeout=60).values())


@pytest.mark.long_but(1)
@pytest.mark.parametrize("kind", ["Plain", "Async"])
def test_one_that_raises_refuses_for_all_ranks(
    kind: str, project: Project, procs: ProcMesh
) -> None:
    project.write("hooked.py", HOOKED)
    first = project.sync(procs).generation
    cls = getattr(project.load("hooked"), kind)
    actors: Any = procs.spawn("actors", cls, "first")
    others: Any = procs.spawn("others", cls, "second")
    assert _values(actors.read) == [(1, 1, first)] * 2
    project.edit("hooked.py", "LEVEL = 1\n", "LEVEL = 13\n")
    refused = project.sync(procs)
    assert not refused.ok
    text = str(refused)
    for part in ("__reload__ of ", "level 13 is not for first", "ValueError", "trainers 1"):
        assert part in text, text
    assert "hooked.py:" in text
    assert [v[:2] for v in _values(actors.read)] == [(1, 1)] * 2
    assert [v[:2] for v in _values(others.read)] == [(1, 1)] * 2
    # Rank 0 had taken it over: it has heard that it was taken back, too.
    told = [[entry[:2] for entry in entries] for entries in _values(actors.told)]
    assert told == [[(13, False), (1, True)], []]
    project.edit("hooked.py", "LEVEL = 13", "LEVEL = 2")
    assert project.sync(procs).ok
    assert [v[:2] for v in _values(actors.read)] == [(2, 2)] * 2
    assert _values(actors.order)[1] == ["first", "second"], "in the order of their spawns"


@pytest.mark.long_but(1)
@pytest.mark.parametrize("kind", ["Plain", "Async"])
def test_one_that_does_not_return_refuses_too(kind: str, project: Project) -> None:
    project.write("hooked.py", HOOKED)
    with configured(reload_timeout_seconds=0.5):
        procs = this_host().spawn_procs({"gpus": 2}, name="trainers")
        assert project.sync(procs).ok
        actors: Any = procs.spawn("actors", getattr(project.load("hooked"), kind), "first")
        assert [v[:2] for v in _values(actors.read)] == [(1, 1)] * 2
        project.edit("hooked.py", "LEVEL = 1\n", "LEVEL = 99\n")
        refused = project.sync(procs)
        assert "had not returned after 0.5 s" in str(refused)
        assert actors.slice(gpus=0).read.call_one().get(timeout=30)[:2] == (1, 1)


def test_it_runs_where_the_endpoints_do(project: Project, procs: ProcMesh) -> None:
    project.write("hooked.py", HOOKED)
    assert project.sync(procs).ok
    actors: Any = procs.spawn("actors", project.load("hooked").Plain, "first")
    actors.initialized.get(timeout=30)
    project.edit("hooked.py", "LEVEL = 1\n", "LEVEL = 2\n")
    assert project.sync(procs).ok
    assert [entries[0][2] for entries in _values(actors.told)] == [
        "actor actors 0",
        "actor actors 1",
    ]


CONFIGURED = """
import json
import os
from pathlib import Path

from monarch.actor import Actor, endpoint

HERE = Path(__file__).parent
with open(HERE / "module.json") as file:
    DEFAULTS = json.load(file)
OTHER = json.loads((HERE / "module.json").read_text())["rate"]


class Trainer(Actor):
    def __init__(self, config):
        self.path = HERE / config
        self.rate = json.loads(self.path.read_text())["rate"]
        self.heard = []

    def __reload__(self, change):
        self.heard.append(sorted(os.path.basename(file) for file in change.files))
        if change.touches(self.path):
            assert change.touches("runs/live.json") and not change.touches("live2.json")
            self.rate = json.loads(self.path.read_text())["rate"]

    @endpoint
    def read(self):
        return self.rate, DEFAULTS["rate"], OTHER, self.heard
"""


@pytest.mark.long
def test_a_config_file_reaches_running_actors(project: Project, procs: ProcMesh) -> None:
    project.write("runs/live.json", '{"rate": 1}')
    project.write("module.json", '{"rate": 5}')
    project.write("notes.txt", "a")
    project.write("configured.py", CONFIGURED)
    assert project.sync(procs).ok
    trainers: Any = procs.spawn("trainers", project.load("configured").Trainer, "runs/live.json")
    assert _values(trainers.read) == [(1, 5, 5, [])] * 2

    project.write("runs/live.json", '{"rate": 2}')
    project.write("notes.txt", "b")
    report = project.sync(procs)
    assert report.ok, report
    assert report.modules_reloaded == []
    assert [v[:2] for v in _values(trainers.read)] == [(2, 5)] * 2
    [heard] = _values(trainers.read)[0][3]
    assert "live.json" in heard

    # One that a module reads: what it read follows, at the same moment.
    project.write("module.json", '{"rate": 6}')
    assert project.sync(procs).ok
    assert [v[:3] for v in _values(trainers.read)] == [(2, 6, 6)] * 2
    project.write("module.json", '{"rate": ')
    refused = project.sync(procs)
    assert not refused.ok
    assert "JSONDecodeError" in str(refused)
    assert [v[:3] for v in _values(trainers.read)] == [(2, 6, 6)] * 2

    # Other files just change.
    project.write("module.json", '{"rate": 6}')
    project.sync(procs)
    num_heard = len(_values(trainers.read)[0][3])
    project.write("notes.txt", "c")
    assert project.sync(procs).ok
    assert len(_values(trainers.read)[0][3]) == num_heard


@pytest.mark.long
def test_new_config_and_new_code_are_one_change(project: Project, procs: ProcMesh) -> None:
    project.write("runs/live.json", '{"rate": 1}')
    project.write("module.json", '{"rate": 5}')
    project.write("configured.py", CONFIGURED)
    assert project.sync(procs).ok
    trainers: Any = procs.spawn("trainers", project.load("configured").Trainer, "runs/live.json")
    assert [v[:3] for v in _values(trainers.read)] == [(1, 5, 5)] * 2
    project.write("module.json", '{"rate": 5, "extra": 7}')
    project.edit(
        "configured.py",
        '"module.json").read_text())["rate"]',
        '"module.json").read_text())["extra"]',
    )
    assert project.sync(procs).ok
    assert [v[:3] for v in _values(trainers.read)] == [(1, 5, 7)] * 2


GATED = """
from monarch.actor import Actor, Channel, context, endpoint

MARK = 1


class Gated(Actor):
    def __init__(self):
        self.seen = []

    @endpoint
    def work(self, started):
        gate, wait = Channel.open()
        started.send(gate)
        wait.recv().get(timeout=60)
        self.seen.append(MARK)
        return MARK

    @endpoint
    def mark(self):
        return MARK, context().generation
"""


@pytest.mark.long
def test_no_rank_goes_on_before_all_have_switched(
    project: Project, hosts: HostMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that is done early waits: what its owner sent later runs when all can run it."""
    # What is sent behind a fence that is lifted runs on the old code: this one is not.
    monkeypatch.setattr(session_of(process.current()).reload, "fence_seconds", 60.0)
    project.write("gated.py", GATED)
    procs = hosts.spawn_procs(name="trainers")
    assert project.sync(procs).ok
    actors: Any = procs.spawn("gated", project.load("gated").Gated)
    port, started = Channel.open()
    working = actors.slice(hosts=1).work.call_one(port)
    gate = started.recv().get(timeout=30)
    project.edit("gated.py", "MARK = 1", "MARK = 2")
    pusher = threading.Thread(target=lambda: project.sync(procs))
    pusher.start()
    fence = wait_for_fence(3)
    late = actors.slice(hosts=0).mark.call_one()
    wait_for(lambda: fence.held_at, what="rank 0 to stand there")
    gate.send(None)
    pusher.join(30)
    assert working.get(timeout=30) == 1
    assert late.get(timeout=30)[0] == 2
    assert [mark for mark, _ in _values(actors.mark)] == [2, 2]
