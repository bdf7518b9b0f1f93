"""What a push tells of old code that lives on in its processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.actor import ProcMesh
from monarch.runtime.answers import Response
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.code_switch.audits import Audits
from monarch.runtime.workspace.preparing import AuditEndedError, Breaks
from monarch.runtime.workspace.reload_plan import AuditOutcome, ReloadPlan
from monarch.wire.address import ProcAddress
from monarch.wire.message import Body
from monarch_reload import Reloader
from tests.support import wait_for
from tests.workspace.conftest import Project

HOLDER = """
import types
from monarch.actor import Actor, endpoint, current_rank


def make():
    rate = 10
    def factor(step):
        return step / 10
    return factor


class Holder(Actor):
    def __init__(self):
        self.code = make().__code__

    @endpoint
    def hold(self, rank):
        if rank in (-1, current_rank().rank):
            self.held = types.FunctionType(self.code, globals())

    @endpoint
    def let_go(self):
        self.held = None
"""


@pytest.mark.long_but(1)
def test_old_code_is_told_by_rank_when_all_have_gone_on(project: Project, procs: ProcMesh) -> None:
    project.write("audit_holder.py", HOLDER)
    assert project.sync(procs).ok
    holders: Any = procs.spawn("holders", project.load("audit_holder").Holder)
    holders.let_go.call().get(timeout=60)
    # The old code has no `rate`, so that it can never become the new one.
    project.edit("audit_holder.py", "step / 10", "step / rate")
    report = project.sync(procs)
    assert report.ok
    assert report.wait_for_audit(30)
    assert (report.stale, report.is_green) == ([], True)
    assert report.one_line().startswith("✓ gen")
    generation = report.generation - 1

    holders.hold.call(1).get(timeout=60)
    project.edit("audit_holder.py", "rate = 10", "rate = 11")
    report = project.sync(procs)
    assert report.wait_for_audit(30)
    (text,) = report.stale
    name = f"1 live closure of `audit_holder.make` runs the code of generation {generation}"
    assert text.startswith(name)
    assert " (on " in text
    assert report.ok
    assert not report.is_green
    assert report.one_line().startswith("! gen")
    assert f"old code: {text}" in str(report)
    assert report.to_dict()["stale"] == [text]

    holders.let_go.call().get(timeout=60)
    project.edit("audit_holder.py", "rate = 11", "rate = 12")
    report = project.sync(procs)
    assert report.wait_for_audit(30)
    assert report.stale == []


@pytest.mark.long
def test_a_respawn_ends_old_code_though_no_file_has_changed(
    project: Project, procs: ProcMesh
) -> None:
    project.write("ended_holder.py", HOLDER)
    assert project.sync(procs).ok
    holders: Any = procs.spawn("holders", project.load("ended_holder").Holder)
    holders.hold.call(-1).get(timeout=60)
    project.edit("ended_holder.py", "step / 10", "step / rate")
    report = project.sync(procs)
    assert report.wait_for_audit(30)
    assert report.stale
    assert "ends it" in str(report)
    report = project.sync(procs, reload="respawn")
    assert report.ok, report
    assert report.actors_respawned == {"Holder": len(procs)}
    assert report.wait_for_audit(30)
    assert report.stale == []
    assert not project.sync(procs, reload="respawn").actors_respawned, "there is none any more"
    project.edit("ended_holder.py", "rate = 10", "rate = 11")
    assert project.sync(procs).modules_reloaded == ["ended_holder.py"]


def test_a_removed_module_that_others_import_is_told(project: Project, procs: ProcMesh) -> None:
    project.write("audit_extra.py", "scale = 2\n")
    user = "from monarch.actor import Actor\nfrom audit_extra import scale\n\n\n"
    project.write("audit_user.py", f"{user}class User(Actor):\n    pass\n")
    assert project.sync(procs).ok
    users: Any = procs.spawn("users", project.load("audit_user").User)
    assert users.initialized.get(timeout=60) is None
    (project.root / "audit_extra.py").unlink()
    report = project.sync(procs)
    assert report.warnings == [
        "audit_user.py:2 imports audit_extra, which is gone; what starts later will fail"
    ]
    assert "1 file deleted" in report.one_line()


class OneProcess:
    """A process with one proc, which is asked for its audit and says nothing, unless told to."""

    def __init__(self) -> None:
        self.asked: list[Promise[Response[Body]]] = []
        self.uid = "us"
        node: Any = self
        here: Any = SimpleNamespace(audit=self.audit)
        self.looks_for_ever = False
        self.audits = Audits(node, here)
        self.heard: list[int] = []
        self.audits.on_found.append(lambda generation, _: self.heard.append(generation))

    def handle(self, kind: type, handler: Callable[[Any], None]) -> None:
        pass

    def ask(self, to: object, request: object) -> Promise[Response[Body]]:
        self.asked.append(Promise())
        return self.asked[-1]

    def audit(self, plan: ReloadPlan, is_over: Callable[[], bool]) -> AuditOutcome:
        pause = Breaks(is_over)
        while self.looks_for_ever:
            pause()
        return AuditOutcome(stale={"here": ["us"]}, num_procs=1)

    def begin(self, generation: int) -> Promise[AuditOutcome]:
        self.audits.begin(ReloadPlan(generation, "", "auto"), [ProcAddress("proc")])
        wait_for(lambda: len(self.asked) == generation, what="the proc to be asked")
        return self.audits.of(generation)


@pytest.mark.parametrize("looks_for_ever", [False, True], ids=["a silent proc", "a long look"])
def test_an_audit_ends_where_a_newer_one_comes_or_its_process_closes(looks_for_ever: bool) -> None:
    process = OneProcess()
    process.looks_for_ever = looks_for_ever
    first = process.begin(1)
    assert not first.is_set
    second = process.begin(2)
    assert first.wait(10)
    assert first.value == AuditOutcome()
    assert not second.is_set
    process.audits.close()
    assert second.wait(10)
    process.audits.begin(ReloadPlan(3, "", "auto"), [])
    assert process.audits.of(3).is_set, "none begins any more"
    assert (process.heard, len(process.asked)) == ([], 2)


def test_an_audit_does_without_procs_that_are_gone_or_say_nothing() -> None:
    process = OneProcess()
    outcome = process.begin(1)
    process.asked[0].set(Response(None, "it died", is_down=True))
    assert outcome.wait(10)
    assert outcome.value.stale == {"here": ["us"]}
    process.audits.answer_seconds = 0.01
    outcome = process.begin(2)
    assert outcome.wait(10)
    assert outcome.value.stale == {"here": ["us"]}
    wait_for(lambda: process.heard == [1, 2], what="both to be told")


def test_breaks_are_of_the_work_of_the_audit_alone_and_not_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    now = {"work": 0.0, "clock": 0.0}

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now["clock"] += seconds

    monkeypatch.setattr(time, "thread_time", lambda: now["work"])
    monkeypatch.setattr(time, "monotonic", lambda: now["clock"])
    monkeypatch.setattr(time, "sleep", sleep)
    pause = Breaks()
    now["clock"] += 100  # Others had the processor.
    pause()
    for _ in range(100_000):
        now["work"] += 0.001
        pause()
    monkeypatch.undo()
    assert slept[0] == 0
    assert slept[1] == pytest.approx(0.009)
    assert sum(slept) < 10


def test_a_look_ends_in_its_midst(project: Project) -> None:
    project.write("audit_ends.py", "def f(): return 1\n")
    with Reloader([project.root]) as reloader:
        project.load("audit_ends")
        project.edit("audit_ends.py", "return 1", "return 2")
        reloader.reload()
        looks: list[None] = []

        def is_over() -> bool:
            looks.append(None)
            return len(looks) > 1

        with pytest.raises(AuditEndedError):
            reloader.audit(pause=Breaks(is_over))
        assert reloader.audit().ok
