"""Wherever the fences of a push fall, those who run go on, and the push comes through."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Channel, HostMesh, ProcMesh, this_host
from monarch.config import configured, settings
from monarch.job import ProcessJob
from monarch.net.transport import Frames
from monarch.net.unix_connection import UnixConnection
from monarch.runtime import process
from monarch.runtime.workspace.code_switch.driver import CodeSwitch
from monarch.runtime.workspace.session import session_of
from monarch.wire.codec import unpack
from monarch.wire.message import Order, SwitchOrder
from monarch_sync import SyncReport
from tests.support import Program, is_running, wait_for
from tests.workspace.author import script
from tests.workspace.conftest import Project
from tests.workspace.meeting import WALKERS, driven
from tests.workspace.steps import Stamps

NUMS_OF_PUSHES = [5, pytest.param(20, marks=pytest.mark.slow)]


class Push:
    """One push of the next mark, on a thread."""

    def __init__(self, project: Project, mark: int, push: Callable[[], SyncReport]) -> None:
        project.edit("walkers.py", f"MARK = {mark - 1}\n", f"MARK = {mark}\n")
        self.reports: list[SyncReport] = []
        self.waits: list[str] = []
        self._thread = threading.Thread(target=lambda: self.reports.append(push()))
        self._thread.start()

    def end(self) -> SyncReport:
        wait_for(lambda: not self._thread.is_alive(), 30, what="the end of a push")
        assert self.reports, "it has raised"
        assert self.reports[0].ok, str(self.reports[0])
        return self.reports[0]


def _module(project: Project, procs: ProcMesh | HostMesh) -> Any:
    project.write("walkers.py", WALKERS)
    assert project.sync(procs).ok
    return project.load("walkers")


def _walkers(project: Project, tmp_path: Path, name: str, other: str, kind: str = "Walker") -> Any:
    procs = this_host().spawn_procs(name=name)
    cls = getattr(_module(project, procs), kind)
    walkers: Any = procs.spawn(name, cls, str(tmp_path), name, [other])
    walkers.initialized.get(timeout=60)
    return walkers


def _step(walkers: Any) -> Callable[[], Any]:
    return lambda: walkers.step.call_one().get(timeout=90)


def _push_often(
    project: Project, folder: Path, num_pushes: int, calls: list[Callable[[], Any]]
) -> list[list[Any]]:
    """Pushes while these are called; what the calls answered."""
    procs = this_host().spawn_procs(name="pushed")
    stamps = Stamps()
    with driven(*calls, end=(folder / "over").touch) as drives:
        for mark in range(1, num_pushes + 1):
            for drive in drives:
                drive.is_going_on()
            Push(project, mark, lambda: project.sync(procs)).end()
    stamps.close()
    stamps.check()
    return [drive.answers for drive in drives]


@pytest.mark.long
@pytest.mark.parametrize("num_pushes", NUMS_OF_PUSHES)
def test_two_meshes_that_wait_for_one_another(
    project: Project, tmp_path: Path, num_pushes: int
) -> None:
    one = _walkers(project, tmp_path, "one", "other")
    other = _walkers(project, tmp_path, "other", "one")
    for answers in _push_often(project, tmp_path, num_pushes, [_step(one), _step(other)]):
        assert all(began == ended for began, ended in answers), "a step of two generations"
        assert answers == sorted(answers)
        assert {mark for (_, mark), _ in answers} >= set(range(num_pushes))


@pytest.mark.long
@pytest.mark.parametrize("num_pushes", NUMS_OF_PUSHES)
def test_two_owners_whose_meshes_wait_for_one_another(
    project: Project, tmp_path: Path, num_pushes: int
) -> None:
    leader = _walkers(project, tmp_path, "led", "alone", "Leader")
    alone = _walkers(project, tmp_path, "alone", "led")
    calls = [_step(leader), _step(alone)]
    of_led, of_alone = _push_often(project, tmp_path, num_pushes, calls)
    for steps in ([step for both in of_led for step in both], of_alone):
        assert all(began == ended for began, ended in steps), "a step of two generations"
        assert steps == sorted(steps)
    # What a leader does in one step is done by one generation.
    assert all(len({began for began, _ in steps}) == 1 for steps in of_led)


class Between:
    """Watches this process's pushes; after a fence was given up for the first time, something
    happens."""

    def __init__(self, switch: CodeSwitch, act: Callable[[], object] = lambda: None) -> None:
        self._act = act
        self._ask = functools.partial(CodeSwitch.ask, switch)
        self.attempts: list[int] = []
        switch.ask = self._watch  # type: ignore[method-assign]

    def _watch(self, order: Order, *how: Any) -> Any:
        outcome = self._ask(order, *how)
        if order.kind is SwitchOrder.LIFT:
            self.attempts.append(order.attempt)
            if len(self.attempts) == 1:
                self._act()
        return outcome


class Sleepers:
    """A mesh that is in a long message, and another that is called meanwhile."""

    def __init__(self, project: Project, hosts: HostMesh) -> None:
        self.project = project
        self.hosts = hosts
        self.procs = hosts.spawn_procs(name="quick")
        self.module = _module(project, self.procs)
        self.quick: Any = self.procs.spawn("quick", self.module.Sleeper)
        self.slow: Any = hosts.spawn_procs(name="slow").spawn("slow", self.module.Sleeper)
        port, started = Channel.open()
        self.working = self.slow.work.call(port)
        self.gates = [started.recv().get(timeout=60) for _ in range(self.slow.size())]
        [self.old, *_] = self.quick.stamp.call().get(timeout=60).values()

    def stamps(self) -> list[tuple[int, int]]:
        return list(self.quick.stamp.call().get(timeout=60).values())

    def push(self, act: Callable[[], object] = lambda: None) -> tuple[Between, Push]:
        session = session_of(process.current())
        owner = Between(session.reload, act)
        addresses = [host.address for host in self.hosts._hosts]
        push = Push(
            self.project, 1, lambda: session.push(addresses, self.project.workspace)
        )  # fmt: skip
        return owner, push

    def wake(self) -> None:
        for gate in self.gates:
            gate.send(None)


@pytest.fixture(params=["directly", "along a tree"])
def sleepers(
    request: pytest.FixtureRequest, project: Project, hosts: HostMesh
) -> Iterator[Sleepers]:
    min_hosts = 2 if request.param == "along a tree" else settings().tree_min_hosts
    with configured(tree_min_hosts=min_hosts):
        yield Sleepers(project, hosts)
    vars(session_of(process.current()).reload).pop("ask", None)


def _killed(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_running(pid), what="the end")


def test_a_push_with_nobody_in_its_way_is_one_fence_and_three_steps(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    procs = this_host().spawn_procs({"gpus": 2}, name="trainers")
    sleepers: Any = procs.spawn("sleepers", _module(project, procs).Sleeper)
    sleepers.stamp.call().get(timeout=60)
    sent: Counter[str] = Counter()
    order: list[str] = []
    send = UnixConnection.send

    def counted(self: UnixConnection, frames: Frames) -> None:
        message = unpack(frames).message
        name = message.kind.value if isinstance(message, Order) else type(message).__name__
        sent[name] += 1
        order.append(name)
        send(self, frames)

    with configured(hang_timeout_seconds=0.0):
        monkeypatch.setattr(UnixConnection, "send", counted)
        project.edit("walkers.py", "MARK = 0\n", "MARK = 1\n")
        assert project.sync(procs).ok
        monkeypatch.undo()
    steps = {name: sent[name] for name in ("prepare", "fence", "halt", "patch", "go")}
    assert steps == dict.fromkeys(steps, 2)
    assert not set(sent) - {*steps, "Inspect", "Watch", "AuditAsked"}, sent
    # What comes after the steps holds nobody up.
    assert sent["AuditAsked"] <= 2
    assert "AuditAsked" not in order[: len(order) - order[::-1].index("go")], order


@pytest.mark.long
def test_a_long_message_holds_others_up_for_a_while_only(sleepers: Sleepers) -> None:
    with driven(sleepers.stamps) as [calls]:
        calls.is_going_on()
        owner, push = sleepers.push()
        for number in (1, 2, 3):
            wait_for(lambda n=number: len(owner.attempts) >= n, 30, what="a fence given up")
            calls.is_going_on(3)
        assert not push.reports
        assert set(calls.answers[-1]) == {sleepers.old}
        assert owner.attempts[:3] == [1, 2, 3]
        sleepers.wake()
        report = push.end()
        calls.is_going_on(2)
        assert set(calls.answers[-1]) == {(report.generation, 1)}
    assert set(sleepers.working.get(timeout=60).values()) == {sleepers.old}
    assert set(sleepers.slow.stamp.call().get(timeout=60).values()) == {(report.generation, 1)}
    assert all(len(set(values)) == 1 for values in calls.answers), "ranks differ"


@pytest.mark.long
def test_a_long_message_holds_others_of_its_process_up_for_a_while_only(
    project: Project,
) -> None:
    procs = this_host().spawn_procs(name="both")
    module = _module(project, procs)
    quick: Any = procs.spawn("quick", module.Sleeper)
    slow: Any = procs.spawn("slow", module.Sleeper)
    port, started = Channel.open()
    working = slow.work.call_one(port)
    gate = started.recv().get(timeout=60)
    with driven(lambda: quick.stamp.call_one().get(timeout=60)) as [calls]:
        calls.is_going_on()
        push = Push(project, 1, lambda: project.sync(procs))
        switch = session_of(process.current()).reload
        for number in (1, 2, 3):
            wait_for(
                lambda n=number: switch.num_lifted >= n, 30,
                what="a fence given up",
            )  # fmt: skip
            calls.is_going_on(3)
        assert not push.reports
        gate.send(None)
        report = push.end()
        calls.is_going_on(2)
        assert calls.answers[-1] == (report.generation, 1)
    assert working.get(timeout=60)[1] == 0


@pytest.mark.long
def test_a_fence_that_holds_nobody_up_stays(
    sleepers: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = session_of(process.current()).reload
    monkeypatch.setattr(switch, "fence_seconds", 0.0)
    monkeypatch.setattr(switch.machine, "tell_seconds", (0.5, 3.0))
    said: list[str] = []
    switch.on_waiting = said.append
    # Who is busy is not held up by what waits for it.
    waiting = sleepers.slow.stamp.call()
    owner, push = sleepers.push()
    wait_for(lambda: "in 'work'" in str(said), what="a word about whom it waits for")
    behind = sleepers.slow.stamp.call()
    wait_for(lambda: "for 3 s" in str(said), what="another")
    assert not owner.attempts
    sleepers.wake()
    push.end()
    assert set(waiting.get(timeout=60).values()) == {sleepers.old}
    assert len(set(behind.get(timeout=60).values())) == 1, "ranks differ"


@pytest.mark.long
def test_procs_that_are_made_between_two_fences_follow(sleepers: Sleepers) -> None:
    late: list[Any] = []

    def spawn() -> None:
        procs = sleepers.hosts.spawn_procs(name="late")
        late.append(procs.spawn("late", sleepers.module.Sleeper))
        sleepers.wake()

    with driven(sleepers.stamps) as [calls]:
        calls.is_going_on()
        owner, push = sleepers.push(spawn)
        report = push.end()
    assert owner.attempts
    assert set(late[0].stamp.call().get(timeout=60).values()) == {(report.generation, 1)}


@pytest.mark.long_but(1)
def test_procs_that_die_between_two_fences_keep_nobody(
    sleepers: Sleepers, faults: list[Any]
) -> None:
    extra: Any = sleepers.hosts.spawn_procs(name="extra").spawn("extra", sleepers.module.Sleeper)
    pids = list(extra.pid.call().get(timeout=60).values())

    def kill() -> None:
        for pid in pids:
            _killed(pid)
        sleepers.wake()

    with driven(sleepers.stamps) as [calls]:
        calls.is_going_on()
        owner, push = sleepers.push(kill)
        report = push.end()
        calls.is_going_on(2)
        assert set(calls.answers[-1]) == {(report.generation, 1)}
    assert owner.attempts


@pytest.mark.long
def test_an_author_killed_between_two_fences_leaves_the_rest_to_the_owner(
    job: ProcessJob, sleepers: Sleepers, program: Callable[..., Program]
) -> None:
    address = process.current().node.address
    order = {
        "folder": str(sleepers.project.root), "file": "walkers.py", "urls": job.urls(),
        "owner": [address.uid, list(address.urls), address.machine], "marks": [1],
    }  # fmt: skip
    authors: list[Program] = []
    reload = session_of(process.current()).reload
    between = Between(reload, lambda: os.kill(authors[0].pid, signal.SIGKILL))
    with driven(sleepers.stamps) as [calls]:
        calls.is_going_on()
        authors.append(program(script(order)))
        assert authors[0].wait(60) == -9, authors[0].story()
        wait_for(lambda: len(between.attempts) >= 2, 30, what="another fence")
        calls.is_going_on(3)
        assert set(calls.answers[-1]) == {sleepers.old}
        sleepers.wake()
        wait_for(lambda: reload.is_idle, 60, what="an end of it")
        calls.is_going_on(2)
        assert {mark for _, mark in calls.answers[-1]} == {1}
    assert set(sleepers.working.get(timeout=60).values()) == {sleepers.old}
    sleepers.project.edit("walkers.py", "MARK = 1\n", "MARK = 2\n")
    report = sleepers.project.sync(sleepers.procs)
    assert report.ok, str(report)
    assert {mark for _, mark in sleepers.stamps()} == {2}


@pytest.mark.long
def test_procs_that_are_to_give_way_serve_until_all_stand(sleepers: Sleepers) -> None:
    pids = set(sleepers.quick.pid.call().get(timeout=60).values())
    # Which cannot be taken in place.
    sleepers.project.edit("walkers.py", '__slots__ = ("x",)', '__slots__ = ("x", "y")')
    with driven(sleepers.stamps) as [calls]:
        calls.is_going_on()
        owner, push = sleepers.push()
        wait_for(lambda: len(owner.attempts) >= 2, 30, what="fences given up")
        calls.is_going_on(3)
        assert set(calls.answers[-1]) == {sleepers.old}
        assert set(sleepers.quick.pid.call().get(timeout=60).values()) == pids
        sleepers.wake()
        report = push.end()
        calls.is_going_on(2)
        assert set(calls.answers[-1]) == {(report.generation, 1)}
    assert report.procs_respawned
    assert not pids & set(sleepers.quick.pid.call().get(timeout=60).values())
    assert all(len(set(values)) == 1 for values in calls.answers), "ranks differ"


@pytest.mark.long
def test_ctrl_c_between_two_fences_leaves_all_as_it_was(sleepers: Sleepers) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    session = session_of(process.current())
    Between(session.reload, interrupt)
    addresses = [host.address for host in sleepers.hosts._hosts]
    sleepers.project.edit("walkers.py", "MARK = 0\n", "MARK = 1\n")
    with driven(sleepers.stamps) as [calls]:
        calls.is_going_on()
        with pytest.raises(KeyboardInterrupt):
            session.push(addresses, sleepers.project.workspace)
        calls.is_going_on(3)
        assert set(calls.answers[-1]) == {sleepers.old}
        sleepers.wake()
    assert sleepers.project.sync(sleepers.procs).ok
    assert {mark for _, mark in sleepers.stamps()} == {1}
