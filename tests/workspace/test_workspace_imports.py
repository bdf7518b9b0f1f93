"""A push imports nothing into a process that neither the edit nor its user asks for."""

from __future__ import annotations

import pytest

from monarch.actor import this_host
from tests.workspace.conftest import Project

LOADED = """
import sys

import {libraries}
from monarch.actor import Actor, endpoint

SCALE = 1


class Holder(Actor):
    def __init__(self):
        self.before = set()

    @endpoint
    def note(self):
        self.before = set(sys.modules)
        return self.amount()

    @endpoint
    def arrived(self):
        return sorted(set(sys.modules) - self.before)

    def amount(self):
        return SCALE * 10
"""
EDITS = {
    "narrow": ("SCALE * 10", "SCALE * 20"),
    "wide": ("SCALE = 1", "SCALE = 2"),
    "refused": ("SCALE = 1", "SCALE = 1 / 0"),
    "respawn": ("def amount", "__slots__ = ('more',)\n\n    def amount"),
}


@pytest.mark.parametrize(
    "libraries",
    [
        "json",
        pytest.param("numpy", marks=pytest.mark.long),
        pytest.param("torch._dynamo", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("edit", EDITS)
def test_the_first_push_into_a_process_imports_nothing(
    project: Project, libraries: str, edit: str
) -> None:
    pytest.importorskip(libraries.partition(".")[0])
    project.write("holder_mod.py", LOADED.format(libraries=libraries))
    holder = project.load("holder_mod").Holder
    procs = this_host().spawn_procs({"gpus": 1}, name="trainers")
    actors = procs.spawn("holder", holder)
    assert actors.note.call_one().get() == 10
    project.edit("holder_mod.py", *EDITS[edit])
    report = project.sync(procs, reload="patch")
    assert report.ok == (edit in ("narrow", "wide")), str(report)
    assert report.wait_for_audit(60)
    assert actors.arrived.call_one().get() == []
