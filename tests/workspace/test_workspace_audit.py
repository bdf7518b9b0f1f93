"""What a push tells of old code that lives on in its processes."""

from __future__ import annotations

from typing import Any

from monarch.actor import ProcMesh
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


def test_old_code_is_told_by_rank_when_all_have_gone_on(project: Project, procs: ProcMesh) -> None:
    project.write("audit_holder.py", HOLDER)
    assert project.sync(procs).ok
    holders: Any = procs.spawn("holders", project.load("audit_holder").Holder)
    holders.let_go.call().get(timeout=60)
    project.edit("audit_holder.py", "step / 10", "step / 20")
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
