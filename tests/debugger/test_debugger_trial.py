"""Calls of a run's trainer, which a `Trial` surrounds: they are held and stepped as any other."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.actor import Actor, ProcMesh, endpoint
from monarch.runs.hold.trial import Trial
from monarch.runtime import process
from tests.debugger.held_actors import Stepper
from tests.debugger.typist import console, line_of, wait_for_holds


class Uids(Actor):
    """Tells who else is in its process."""

    @endpoint
    def of(self, name: str) -> str:
        return next(c.record.uid for c in process.current().cells if c.record.name == name)


@pytest.fixture
def tried(procs: ProcMesh) -> Any:
    """One of them, which has been called before."""
    one = procs.slice(gpus=0)
    made = one.spawn("stepper", Stepper)
    made.echo.call_one(0).get(timeout=60)
    uid = one.spawn("uids", Uids).of.call_one("stepper").get(timeout=60)
    one.spawn("trial", Trial, uid, {}).report.call_one().get(timeout=60)
    assert made.echo.call_one(1).get(timeout=60) == 1
    return made


def test_it_is_stepped_into_functions(tried: Any) -> None:
    answer = tried.steps_into.call_one(1)
    wait_for_holds(1)
    shown = console("attach stepper 0", "s", "s", "p value", "w", "r", "n", "p number", "c")
    assert "tried()" not in shown
    assert "doubled()" in shown
    assert "(Pdb) p value\n1\n" in shown
    assert "(Pdb) p number\n2\n" in shown
    assert answer.get(timeout=60) == 2


def test_it_is_stopped_at_its_first_line(tried: Any) -> None:
    assert "stepper rank 0 stops at its next call" in console("stop 0")
    answer = tried.echo.call_one(7)
    (hold,) = wait_for_holds(1)
    assert (hold.function, hold.line) == ("Stepper.echo", line_of("        return value"))
    console("attach stepper 0", "p value", "c")
    assert answer.get(timeout=60) == 7
