"""While somebody is held, clocks stand still: limits of runs, pushes, torch's process groups."""

from __future__ import annotations

import importlib
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import this_host
from monarch.runs.recover.ranks import answers_of
from monarch.runtime.client_agent import client
from monarch.runtime.workspace.session import session_of
from monarch_sync import Workspace
from tests.debugger.held_actors import Clocked, Stepper
from tests.debugger.typist import console, wait_for_holds
from tests.support import wait_for


def test_a_limit_does_not_run_out_while_a_rank_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    # No time passes but that for which a rank is held: however slow it is to come to that.
    held = types.SimpleNamespace(monotonic=lambda: client().holds.seconds())
    monkeypatch.setattr("monarch.runs.recover.ranks.time", held)
    steppers = this_host().spawn_procs({"gpus": 2}).spawn("stepper", Stepper)
    steppers.echo.call(0).get(timeout=60)
    before = client().holds.seconds()
    answers: list[Any] = []

    def ask() -> None:
        asked = steppers.step.stream(1)
        answers.extend(answers_of(asked, seconds=0.7, witnesses=None, doing="a step"))

    asking = threading.Thread(target=ask)
    asking.start()
    wait_for_holds(2)
    wait_for(lambda: client().holds.seconds() - before > 1.5)
    console("continue")
    asking.join(60)
    assert answers == [2, 2]


def test_clocks_stand_in_procs_that_begin_while_a_rank_is_held() -> None:
    stepper = this_host().spawn_procs().spawn("stepper", Stepper)
    answer = stepper.step.call_one(1)
    wait_for_holds(1)
    newborn = this_host().spawn_procs(name="newborn").spawn("newborn", Clocked)
    below = newborn.spawns.call_one().get(timeout=60)
    for clocked in (newborn, below):
        wait_for(lambda clocked=clocked: clocked.held_seconds.call_one().get(timeout=60) > 0)
    console("continue")
    assert answer.get(timeout=60) == 2
    for clocked in (newborn, below):
        wait_for(lambda clocked=clocked: _stands_still(clocked))
    told = newborn.held_seconds.call_one().get(timeout=60)
    later = this_host().spawn_procs(name="later").spawn("later", Clocked)
    assert later.held_seconds.call_one().get(timeout=60) == 0
    assert newborn.held_seconds.call_one().get(timeout=60) == told


def _stands_still(clocked: Any) -> bool:
    """Whether its sum of held time grows no longer."""
    return len({clocked.held_seconds.call_one().get(timeout=60) for _ in range(2)}) == 1


@pytest.mark.long
def test_a_push_waits_and_names_who_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pushed_aside.py").write_text("A = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("pushed_aside")
    procs = this_host().spawn_procs({"gpus": 1})
    steppers = procs.spawn("stepper", Stepper)
    assert procs.sync_workspace(Workspace(dirs=[tmp_path])).get(timeout=60).ok
    told: list[str] = []
    monkeypatch.setattr(session_of(client()).reload, "on_waiting", told.append)
    answer = steppers.step.call_one(1)
    wait_for_holds(1)
    (tmp_path / "pushed_aside.py").write_text("A = 2\n")
    pushed = procs.sync_workspace(Workspace(dirs=[tmp_path]))
    wait_for(lambda: any("held at held_actors.py:" in text for text in told))
    console("continue")
    assert answer.get(timeout=60) == 2
    assert pushed.get(timeout=60).ok
