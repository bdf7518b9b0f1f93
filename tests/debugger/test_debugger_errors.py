"""Calls that are held where they raise, and run again once that is mended."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import ActorError, ProcMesh, this_host
from monarch.config import configured
from monarch.runtime.client_agent import client
from monarch.runtime.workspace.session import session_of
from monarch.wire.hold import HoldNote
from monarch_sync import Workspace
from tests.debugger.held_actors import AsyncStepper, Stepper
from tests.debugger.typist import console, wait_for_holds
from tests.support import wait_for


@pytest.fixture(autouse=True)
def holds_errors() -> Iterator[None]:
    with configured(breakpoint="wait", on_error="all"):
        yield


@pytest.fixture
def procs() -> ProcMesh:
    return this_host().spawn_procs({"gpus": 2})


def test_a_call_stands_at_its_error_with_its_locals(procs: ProcMesh) -> None:
    stepper = procs.spawn("stepper", Stepper).slice(gpus=1)
    answer = stepper.divide.call_one(0)
    (hold,) = wait_for_holds(1)
    assert (hold.reason, hold.error) == ("error", "ZeroDivisionError: division by zero")
    shown = console("list", "attach stepper 1", "p whole, by", "c")
    assert "stepper 1 is held at: ZeroDivisionError: division by zero" in shown
    assert "(Pdb) p whole, by\n(10, 0)\n" in shown
    with pytest.raises(ActorError, match="division by zero"):
        answer.get(timeout=60)


@pytest.mark.parametrize("cls", [Stepper, AsyncStepper])
def test_a_call_that_is_run_again_gives_its_value_and_no_error(
    procs: ProcMesh, cls: type[Any]
) -> None:
    stepper = procs.spawn("stepper", cls)
    answer = stepper.divide_until.call(1)
    wait_for_holds(2)
    shown = console("cast all redo now", "list")
    assert "not stopped again" not in shown
    assert list(answer.get(timeout=60).values()) == [2.0, 2.0]
    wait_for_holds(0)


@pytest.mark.long
def test_a_redo_of_one_says_that_others_stand_in_the_way_of_new_code(procs: ProcMesh) -> None:
    answer = procs.spawn("stepper", Stepper).divide_until.call(1)
    wait_for_holds(2)
    assert "HELD at held_actors.py:" in console("stacks")
    shown = console("attach stepper 0", "redo")
    assert "stepper 1 is still held, and no new code can come before that goes on" in shown
    assert "still held" not in console("attach stepper 1", "redo now")
    assert list(answer.get(timeout=60).values()) == [2.0, 2.0]


def test_it_may_be_run_again_more_than_once(procs: ProcMesh) -> None:
    stepper = procs.spawn("stepper", Stepper).slice(gpus=0)
    answer = stepper.divide_until.call_one(2)
    before: list[HoldNote] = []
    for _ in range(2):
        before = wait_for_holds(1, but=before)
        console("attach stepper 0", "redo now")
    assert answer.get(timeout=60) == 2.0


def test_a_call_at_a_breakpoint_can_be_run_again_too(procs: ProcMesh) -> None:
    stepper = procs.spawn("stepper", Stepper).slice(gpus=0)
    answer = stepper.step.call_one(1)
    first = wait_for_holds(1)
    console("attach stepper 0", "n", "p number", "redo now")
    (hold,) = wait_for_holds(1, but=first)
    shown = console("attach stepper 0", "p number", "c")
    assert "(Pdb) p number\n1\n" in shown
    assert hold.reason == "breakpoint()"
    assert answer.get(timeout=60) == 2


def test_of_several_only_the_first_stands_where_that_is_asked_for() -> None:
    with configured(on_error="first"):
        procs = this_host().spawn_procs({"gpus": 2})
        stepper = procs.spawn("stepper", Stepper)
        first = stepper.slice(gpus=0).divide.call_one(0)
        wait_for_holds(1)
        with pytest.raises(ActorError, match="division by zero"):
            stepper.slice(gpus=1).divide.call_one(0).get(timeout=60)
        console("continue")
        with pytest.raises(ActorError, match="division by zero"):
            first.get(timeout=60)


def test_without_it_errors_stand_nowhere() -> None:
    with configured(on_error=""):
        stepper = this_host().spawn_procs({"gpus": 1}).spawn("stepper", Stepper)
        with pytest.raises(ActorError, match="division by zero"):
            stepper.divide.call_one(0).get(timeout=60)


_WRONG = """
from monarch.actor import Actor, endpoint


class Counter(Actor):
    def __init__(self) -> None:
        self.total = 10

    @endpoint
    def add(self, number: int) -> int:
        self.total += number
        return self.total / nothing
"""


def test_a_mended_call_runs_on_the_code_that_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "counting_wrong.py"
    file.write_text(_WRONG)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("counting_wrong")
    procs = this_host().spawn_procs({"gpus": 2})
    counters = procs.spawn("counter", module.Counter)
    answer = counters.add.call(5)
    wait_for_holds(2)
    file.write_text(_WRONG.replace("/ nothing", "* 2"))
    told: list[str] = []
    monkeypatch.setattr(session_of(client()).reload, "on_waiting", told.append)
    pushed = procs.sync_workspace(Workspace(dirs=[tmp_path]))
    wait_for(lambda: told, what="the push waits for them")
    shown = console("redo")
    assert "they run again" in shown
    assert list(answer.get(timeout=60).values()) == [40, 40]  # What it did to `self` stays.
    assert pushed.get(timeout=60).ok
