"""Procs whose code cannot change in place: new ones take their places, and references go on."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import pytest

from monarch.actor import Channel, HostMesh, ProcMesh, this_host
from monarch.config import configured
from monarch.job import ProcessJob
from monarch.runtime import process
from monarch.runtime.client_agent import client
from monarch.runtime.workspace.session import session_of
from monarch.wire.message import EnvSet
from tests.support import is_running, wait_for
from tests.workspace.conftest import Project
from tests.workspace.steps import PLAYER, Strike, struck

LAYOUT = """
import os
import sys

from monarch.actor import Actor, Channel, context, current_rank, endpoint

SCALE = 1


class Point:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x

    def norm(self):
        return self.x * SCALE


class Keeper(Actor):
    def __init__(self, start, notes):
        self.notes = list(notes)
        self.point = Point(start)
        self.steps = 0
        self.others = None

    @endpoint
    def step(self):
        self.steps += 1
        return self.point.norm(), self.steps, os.getpid(), context().generation

    @endpoint
    def facts(self):
        return current_rank().rank, self.notes, sorted(Point.__slots__)

    @endpoint
    def work(self, started):
        gate, wait = Channel.open()
        started.send(gate)
        wait.recv().get(timeout=60)
        return self.point.norm()

    @endpoint
    def meet(self, others):
        self.others = others

    @endpoint
    def ask_others(self):
        return sorted(v[0] for v in self.others.step.call().get(timeout=30).values())


class Bystander(Actor):
    def __init__(self):
        self.count = 0

    @endpoint
    def step(self):
        self.count += 1
        return self.count, os.getpid()
"""

PLAIN = """
import os

from monarch.actor import Actor, endpoint

STEP = 1


class Plain(Actor):
    def __init__(self):
        self.count = 0

    @endpoint
    def step(self):
        self.count += STEP
        return self.count, os.getpid()
"""


def _values(endpoint: Any, *args: Any) -> list[Any]:
    return list(endpoint.call(*args).get(timeout=60).values())


def _widen(project: Project) -> None:
    project.edit("layout.py", '("x",)', '("x", "y")')
    project.edit("layout.py", "self.x = x", "self.x, self.y = x, 5")
    project.edit("layout.py", "return self.x * SCALE", "return self.x + self.y")


@pytest.fixture
def keepers(project: Project, procs: ProcMesh) -> Any:
    project.write("layout.py", LAYOUT)
    project.write("plain.py", PLAIN)
    assert project.sync(procs).ok
    made = procs.spawn("keepers", project.load("layout").Keeper, 3, ["a"])
    # Where the files are the procs' own too, they must not be edited while they are imported.
    made.initialized.get(timeout=60)
    return made


@pytest.mark.long_but(1)
def test_new_processes_with_the_same_references(
    project: Project, procs: ProcMesh, keepers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members are made again with the same arguments; ranks, slices and references hold."""
    bystanders: Any = procs.spawn("bystanders", project.load("layout").Bystander)
    before = _values(keepers.step)
    keepers.meet.call(keepers).get(timeout=30)
    one = keepers.flatten("all").slice(all=1)
    assert [v[0] for v in _values(bystanders.step)] == [1, 1]

    _widen(project)
    heard: list[tuple[int, int, list[bool]]] = []
    monkeypatch.setattr(
        session_of(client()).reload, "on_replacing",
        lambda plan, num_procs: heard.append(
            (plan.generation, num_procs, [is_running(v[2]) for v in before])
        ),
    )  # fmt: skip
    report = project.sync(procs)
    assert report.ok, report
    assert heard == [(report.generation, 2, [True, True])], "once, and before it is done"
    assert len(report.procs_respawned) == 2
    assert report.actors_respawned == {"Keeper": 2, "Bystander": 2}
    assert any("__slots__" in reason for reason in report.needs_respawn)
    assert "respawned" in report.one_line()

    after = _values(keepers.step)
    assert [(v[0], v[1], v[3]) for v in after] == [(8, 1, report.generation)] * 2
    assert {v[2] for v in after}.isdisjoint(v[2] for v in before)
    assert _values(keepers.facts) == [(0, ["a"], ["x", "y"]), (1, ["a"], ["x", "y"])]
    assert one.step.call_one().get(timeout=30)[1] == 2
    assert [v[0] for v in _values(bystanders.step)] == [1, 1]
    # A reference that goes from one to the other works as well.
    keepers.meet.call(keepers).get(timeout=30)
    assert keepers.flatten("all").slice(all=0).initialized.get(timeout=30) is None
    for pid in {v[2] for v in before}:
        wait_for(lambda pid=pid: not is_running(pid), what="the old process to end")
    # And again, in both ways.
    project.edit("layout.py", "self.x + self.y", "self.x * self.y")
    assert project.sync(procs).procs_respawned == []
    assert [v[0] for v in _values(keepers.step)] == [15, 15]
    project.edit("layout.py", '("x", "y")', '("x", "y", "z")')
    assert len(project.sync(procs).procs_respawned) == 2
    assert [v[:2] for v in _values(keepers.step)] == [(15, 1)] * 2
    again: Any = procs.spawn("later", project.load("layout").Keeper, 1, [])
    assert [v[0] for v in _values(again.step)] == [5, 5]
    keepers.stop().get(timeout=30)


@pytest.mark.long_but(1)
def test_calls_under_way_run_whole_on_one_code(
    project: Project, procs: ProcMesh, keepers: Any
) -> None:
    port, started = Channel.open()
    working = keepers.work.call(port)
    gates = [started.recv().get(timeout=30) for _ in range(2)]
    _widen(project)
    reports: list[Any] = []
    pusher = threading.Thread(target=lambda: reports.append(project.sync(procs)))
    pusher.start()
    earlier = [keepers.step.call() for _ in range(3)]
    for gate in gates:
        gate.send(None)
    later = []
    while pusher.is_alive():
        later.append(keepers.step.call())
        pusher.join(0.01)
    assert reports[0].ok, reports[0]
    assert list(working.get(timeout=30).values()) == [3, 3]
    seen = [list(call.get(timeout=60).values()) for call in [*earlier, *later]]
    for ranks in seen:
        assert ranks[0][0] == ranks[1][0], "two ranks ran different code"
        assert ranks[0][3] == ranks[1][3]
    sums = [ranks[0][0] for ranks in seen]
    assert sums == sorted(sums)
    assert set(sums) <= {3, 8}
    assert [v[0] for v in _values(keepers.step)] == [8, 8]


@pytest.mark.long
def test_other_procs_are_patched_and_keep_their_state(
    project: Project, procs: ProcMesh, keepers: Any
) -> None:
    """Only procs that have loaded what cannot change are replaced."""
    assert project.load("plain")
    others = this_host().spawn_procs({"gpus": 1}, name="others")
    plain: Any = others.spawn("plain", project.load("plain").Plain)
    assert project.sync(others).ok
    [(count, pid)] = _values(plain.step)
    _widen(project)
    project.edit("plain.py", "STEP = 1", "STEP = 10")
    report = asyncio.run(_both(project, procs, others))
    assert report.ok, report
    assert _values(plain.step) == [(count + 10, pid)]
    assert [v[0] for v in _values(keepers.step)] == [8, 8]


async def _both(project: Project, procs: ProcMesh, others: ProcMesh) -> Any:
    report = await procs.sync_workspace(project.workspace)
    await others.sync_workspace(project.workspace)
    return report


@pytest.mark.long
def test_patch_refuses_by_name(project: Project, procs: ProcMesh, keepers: Any) -> None:
    before = _values(keepers.step)
    _widen(project)
    report = project.sync(procs, reload="patch")
    assert not report.ok
    text = str(report)
    for part in ("layout.py", "Point", "__slots__", "Keeper", 'reload="auto"'):
        assert part in text, text
    after = _values(keepers.step)
    assert [(v[0], v[1], v[2]) for v in after] == [(3, 2, v[2]) for v in before]
    assert project.sync(procs, reload="auto").ok
    assert [v[0] for v in _values(keepers.step)] == [8, 8]


@pytest.mark.long
def test_respawn_runs_init_again_on_patchable_code(
    project: Project, procs: ProcMesh, keepers: Any
) -> None:
    before = _values(keepers.step)
    project.edit("layout.py", "self.steps = 0", "self.steps = 100")
    report = project.sync(procs, reload="respawn")
    assert report.ok, report
    assert len(report.procs_respawned) == 2
    after = _values(keepers.step)
    assert [v[1] for v in after] == [101, 101]
    assert {v[2] for v in after}.isdisjoint(v[2] for v in before)
    # New code that does not run ends nobody.
    project.edit("layout.py", "SCALE = 1", "SCALE = 1 // 0")
    assert not project.sync(procs, reload="respawn").ok
    assert [v[1:3] for v in _values(keepers.step)] == [(102, v[2]) for v in after]


def test_a_word_that_is_no_mode(project: Project, procs: ProcMesh) -> None:
    with pytest.raises(ValueError, match="auto, patch, respawn, off"):
        project.sync(procs, reload="now")


LAZY = """
from monarch.actor import Actor, endpoint


class Lazy(Actor):
    def __init__(self, start):
        import layout

        self.point = layout.Point(start)

    @endpoint
    def norm(self):
        return self.point.norm()


class Boss(Actor):
    @endpoint
    def hire(self, procs):
        self.hired = procs.spawn("hired", Lazy, 4)
        return self.hired.norm.call_one().get(timeout=30)

    @endpoint
    def ask(self):
        return self.hired.norm.call_one().get(timeout=30)
"""


def test_an_actor_owned_by_an_actor_elsewhere(project: Project) -> None:
    """Who spawned an actor in a proc that is replaced makes it again, wherever that is."""
    project.write("layout.py", LAYOUT)
    project.write("lazy.py", LAZY)
    one = this_host().spawn_procs({"gpus": 1}, name="one")
    two = this_host().spawn_procs({"gpus": 1}, name="two")
    assert project.sync(one).ok
    boss: Any = one.spawn("boss", project.load("lazy").Boss)
    assert boss.hire.call_one(two).get(timeout=30) == 4
    _widen(project)
    report = project.sync(one)
    assert report.ok, report
    assert report.procs_respawned == ["two 0"]
    # A call that crosses the change may fail; those after it do not.
    wait_for(lambda: _answer(boss) == 9, 30, "the boss's actor is made again")


def _answer(boss: Any) -> Any:
    try:
        return boss.ask.call_one().get(timeout=30)
    except Exception:
        return None


NESTED = (
    LAZY
    + """

from monarch.actor import this_host


class Owner(Boss):
    @endpoint
    def hire_own(self):
        self.procs = this_host().spawn_procs({"gpus": 2}, name="inner")
        both = self.procs.spawn("hired", Lazy, 4)
        # Both have read their files by the time that these are edited.
        both.norm.call().get(timeout=30)
        self.hired = both.slice(gpus=1)
        return self.hired.norm.call_one().get(timeout=30)
"""
)


def test_procs_that_an_actor_has_spawned(project: Project) -> None:
    """Each owner sees to its own: the actor's process goes on, and its procs are replaced."""
    project.write("layout.py", LAYOUT)
    project.write("lazy.py", NESTED)
    outer = this_host().spawn_procs({"gpus": 1}, name="outer")
    assert project.sync(outer).ok
    owner: Any = outer.spawn("owner", project.load("lazy").Owner)
    assert owner.hire_own.call_one().get(timeout=30) == 4
    _widen(project)
    report = project.sync(outer)
    assert report.ok, report
    assert report.procs_respawned == ["inner 1"] or set(report.procs_respawned) == {
        "inner 0", "inner 1",
    }  # fmt: skip
    assert owner.ask.call_one().get(timeout=30) == 9


@pytest.mark.long
def test_this_program_takes_new_endpoints_though_not_the_layout(
    project: Project, procs: ProcMesh, keepers: Any
) -> None:
    assert _values(keepers.facts)
    project.edit("layout.py", "class Keeper(Actor):\n", "class Keeper(Actor):\n" + FRESH)
    report = project.sync(procs)
    assert report.ok, report
    assert any("Keeper" in reason and "client" in reason for reason in report.needs_respawn)
    assert _values(keepers.fresh) == [7, 7]
    assert _values(keepers.facts)


FRESH = """    __slots__ = ("extra",)

    @endpoint
    def fresh(self):
        self.extra = 7
        return self.extra

"""


def test_too_large_arguments_are_refused_before_anything_ends(project: Project) -> None:
    project.write("layout.py", LAYOUT)
    procs = this_host().spawn_procs({"gpus": 1}, name="trainers")
    assert project.sync(procs).ok
    big: Any = procs.spawn("big", project.load("layout").Keeper, 3, [os.urandom(1 << 25)])
    before = _values(big.step)
    _widen(project)
    report = project.sync(procs)
    assert not report.ok
    assert "big" in str(report)
    assert "pass that to an endpoint" in str(report)
    assert _values(big.step)[0][2] == before[0][2]


@pytest.mark.long
def test_stopping_a_mesh_after_a_respawn_leaves_nothing(
    project: Project, procs: ProcMesh, keepers: Any
) -> None:
    _widen(project)
    assert project.sync(procs).ok
    pids = [v[2] for v in _values(keepers.step)]
    procs.stop().get(timeout=30)
    for pid in pids:
        wait_for(lambda pid=pid: not is_running(pid), what="the new process to end")
    with pytest.raises(Exception, match="keepers"):
        keepers.step.call().get(timeout=30)


@pytest.mark.long
def test_along_a_tree_of_hosts(project: Project, job: ProcessJob) -> None:
    """Where messages go by way of host agents, those hold them back for the new procs."""
    project.write("layout.py", LAYOUT)
    with configured(tree_min_hosts=2, tree_degree=1):
        hosts = job.state(cached_path=None).trainers
        procs = hosts.spawn_procs({"gpus": 2}, name="trainers")
        assert project.sync(procs).ok
        keepers: Any = procs.spawn("keepers", project.load("layout").Keeper, 3, ["a"])
        before = _values(keepers.step)
        assert procs._tree is not None
        for round_ in range(2):
            if round_ == 0:
                _widen(project)
            else:
                project.edit("layout.py", '("x", "y")', '("x", "y", "z")')
            reports: list[Any] = []
            pusher = threading.Thread(target=lambda to=reports: to.append(project.sync(procs)))
            pusher.start()
            calls = [keepers.step.call()]
            while pusher.is_alive():
                calls.append(keepers.step.call())
                pusher.join(0.02)
            assert reports[0].ok, reports[0]
            assert len(reports[0].procs_respawned) == 4
            seen = [list(call.get(timeout=60).values()) for call in calls]
            assert all(len({v[0] for v in ranks}) == 1 for ranks in seen), seen
        after = _values(keepers.step)
        assert [v[0] for v in after] == [8] * 4
        assert {v[2] for v in after}.isdisjoint(v[2] for v in before)
        assert [v[0] for v in _values(keepers.facts)] == [0, 1, 2, 3]
        one: Any = procs.slice(hosts=1, gpus=0).spawn("one", project.load("layout").Keeper, 1, [])
        assert one.step.call_one().get(timeout=30)[0] == 6


@pytest.mark.long
def test_a_proc_that_dies_while_it_gives_way(project: Project, procs: ProcMesh) -> None:
    """It was to end in any case: its place is taken, and the others do not notice."""
    folder = f"FOLDER = {str(project.root.parent)!r}\n"
    project.write("layout.py", LAYOUT + SLOW_END + folder)
    assert project.sync(procs).ok
    slow: Any = procs.spawn("slow", project.load("layout").SlowEnd)
    pids = [v[1] for v in _values(slow.step)]
    _widen(project)
    reports: list[Any] = []
    pusher = threading.Thread(target=lambda: reports.append(project.sync(procs)))
    pusher.start()
    wait_for(lambda: (project.root.parent / str(pids[0])).exists(), 30, "its cleanup has begun")
    os.kill(pids[0], signal.SIGKILL)
    (project.root.parent / "killed").touch()
    pusher.join(60)
    assert reports[0].ok, reports[0]
    assert {v[1] for v in _values(slow.step)}.isdisjoint(pids)


SLOW_END = """

class SlowEnd(Bystander):
    def __cleanup__(self, error):
        import time

        open(os.path.join(FOLDER, str(os.getpid())), "w").close()
        while not os.path.exists(os.path.join(FOLDER, "killed")):
            time.sleep(0.005)
"""


@pytest.mark.long
def test_actors_that_are_still_being_made_run_the_new_code(
    project: Project, procs: ProcMesh
) -> None:
    project.write("plain.py", PLAIN)
    assert project.sync(procs).ok
    cls = project.load("plain").Plain
    for number in range(2, 8):
        actors: Any = procs.spawn(f"plain{number}", cls)
        project.edit("plain.py", f"STEP = {number - 1}\n", f"STEP = {number}\n")
        assert project.sync(procs).ok
        assert [v[0] for v in _values(actors.step)] == [number] * 2


@pytest.mark.long
def test_a_proc_that_takes_the_place_of_another_has_the_variable_that_was_set_there(
    project: Project,
) -> None:
    procs = this_host().spawn_procs({"gpus": 2}, name="trainers")
    project.write("plain.py", PLAIN)
    assert project.sync(procs).ok
    actors: Any = procs.spawn("plain", project.load("plain").Plain)
    pids = {v[1] for v in _values(actors.step)}
    agent: Any = process.current()
    node = agent.node
    order = {"MT_RANK": "7"}
    set_there = node.ask(node.address, EnvSet(dict(order), "anna", (1,)))
    assert set_there.wait(5)
    try:
        project.edit("plain.py", "STEP = 1", "STEP = 5")
        assert project.sync(procs, reload="respawn").ok
        assert {v[1] for v in _values(actors.step)}.isdisjoint(pids)
        assert procs.env("MT_RANK")["MT_RANK"] == {0: None, 1: "7"}
    finally:
        agent.host_agent._later_env._set.clear()


@pytest.mark.long
def test_modules_that_are_imported_during_a_push(project: Project, procs: ProcMesh) -> None:
    """First imported between the two halves of a push, in some procs only."""
    assert project.sync(procs).ok
    for number in range(4):
        project.write(f"late{number}.py", PLAIN)
        assert project.sync(procs).ok
        project.edit(f"late{number}.py", "STEP = 1", "STEP = 5")
        reports: list[Any] = []
        pusher = threading.Thread(target=lambda to=reports: to.append(project.sync(procs)))
        pusher.start()
        actors: Any = procs.spawn(f"late{number}", _class_of(project, f"late{number}"))
        first = [v[0] for v in _values(actors.step)]
        pusher.join(30)
        assert reports[0].ok, reports[0]
        assert set(first) <= {1, 5}
        second = [v[0] for v in _values(actors.step)]
        assert [after - before for after, before in zip(second, first, strict=True)] == [5, 5]


def _class_of(project: Project, name: str) -> Any:
    return project.load(name).Plain


@pytest.mark.long_but(1)
@pytest.mark.parametrize("reload", ["respawn", "auto"])
def test_a_proc_that_imports_old_code_while_a_push_is_prepared_gives_way_too(
    project: Project, hosts: HostMesh, reload: str
) -> None:
    procs = hosts.spawn_procs(name="trainers")
    slots = PLAYER + '\n\nclass Point:\n    __slots__ = ("x",)\n\n\nORIGIN = Point()\n'
    project.write("player.py", slots)
    assert project.sync(procs).ok
    cls = project.load("player").Player
    made: list[Any] = []
    project.write("player.py", slots.replace("MARK = 0", "MARK = 1").replace('"x",', '"x", "y"'))
    with struck(Strike("fence", lambda: made.append(procs.spawn("player", cls)))):
        report = project.sync(procs, reload=reload)
    assert report.ok, str(report)
    assert report.actors_respawned == {"Player": 2}
    stamps = list(made[0].stamp.call().get(timeout=30).values())
    assert stamps == [(report.generation, 1)] * 2
