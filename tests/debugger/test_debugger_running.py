"""What a console asks of ranks that run: where they are, to stop, and to stop at a line."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import ProcMesh, this_host
from monarch.runtime.debugger.stop_at import CAN_STOP_NOW
from monarch_sync import Workspace
from tests.debugger.held_actors import AsyncStepper, Stepper
from tests.debugger.typist import console, line_of, wait_for_holds
from tests.support import wait_for

needs_3_12 = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="before Python 3.12 a thread cannot be traced by another"
)


def test_where_tells_who_is_held_who_runs_and_who_is_idle(steppers: Any) -> None:
    held = steppers.slice(gpus=0).step.call_one(1)
    steppers.slice(gpus=1).loops.broadcast()
    wait_for_holds(1)
    wait_for(lambda: "in loops" in console("where"))
    shown = console("where")
    assert "rank 0        HELD at held_actors.py:" in shown
    assert "rank 1        in loops, held_actors.py:" in shown
    assert "ranks 2-3     idle" in shown
    console("continue")
    assert held.get(timeout=60) == 2


def test_stacks_show_the_users_frames_with_their_locals(steppers: Any) -> None:
    held = steppers.slice(gpus=0).nested.call_one(41)
    wait_for_holds(1)
    shown = console("stacks 0 --locals")
    assert "stepper in nested, rank 0" in shown
    assert "in deeper" in shown
    assert "number = 41" in shown
    assert "monarch/runtime" not in shown.partition("held_pdb")[0].partition("in nested")[2][:60]
    console("continue")
    assert held.get(timeout=60) == 151


def test_an_idle_rank_is_held_at_its_next_call(steppers: Any) -> None:
    assert "stepper rank 1 stops at its next call" in console("stop 1")
    answer = steppers.echo.call("x")
    (hold,) = wait_for_holds(1)
    assert (hold.rank, hold.reason.partition(" by ")[0]) == (1, "stopped")
    shown = console("attach stepper 1", "n", "p value", "c")
    assert "(Pdb) p value\n'x'\n" in shown
    assert list(answer.get(timeout=60).values()) == ["x"] * 4
    assert list(steppers.echo.call("y").get(timeout=60).values()) == ["y"] * 4


@needs_3_12
def test_a_rank_in_a_loop_is_held_at_its_next_line(steppers: Any) -> None:
    answer = steppers.slice(gpus=2).loops.call_one()
    wait_for(lambda: "in loops" in console("where 2"))
    assert "stops at its next line" in console("stop 2")
    (hold,) = wait_for_holds(1)
    assert hold.method == "loops"
    shown = console("attach stepper 2", "p turns > 0", "!self.loss = 0", "c")
    assert "(Pdb) p turns > 0\nTrue\n" in shown
    assert answer.get(timeout=60) > 0


@pytest.mark.long
def test_a_rank_that_holds_the_gil_says_why_it_is_not_stopped_yet(
    steppers: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    answer = steppers.slice(gpus=1).hogs.call_one(str(tmp_path / "sign"), str(gate))
    wait_for((tmp_path / "sign").exists)
    shown = console("stop 1", seconds=3.0)
    assert "rank 1 does not answer: it is stopped, or a thread holds the GIL" in shown
    assert "it stops when it does" in shown
    gate.open("wb").close()
    assert answer.get(timeout=60)
    console("continue")


@pytest.mark.long
def test_a_rank_whose_code_torch_traces_is_not_stopped_in_the_middle(
    steppers: Any, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    one, sign, go = steppers.slice(gpus=1), tmp_path / "sign", tmp_path / "go"
    answer = one.compiles.call_one(str(sign), str(go))
    wait_for(sign.exists, 90.0)
    shown = console("stop 1")
    if CAN_STOP_NOW:
        assert "rank 1 not stopped: torch.compile traces at this moment" in shown
    else:
        assert "stepper rank 1 stops at its next call" in shown
    go.touch()
    assert answer.get(timeout=60) == 2.0
    later = one.echo.call_one(5)
    if not CAN_STOP_NOW:
        wait_for_holds(1)
        console("continue")
    assert later.get(timeout=60) == 5


def test_what_matches_nobody_says_so(steppers: Any) -> None:
    assert "that is no rank of those that run: 0-3" in console("stop 9")
    assert "that is no rank of those that run: 0-3" in console("stacks 9")
    assert "there is no breakpoint 4" in console("break clear 4")
    assert "break FILE:LINE" in console("break nonsense")
    assert "is no condition" in console("break a.py:3 if x >")


@pytest.mark.parametrize("cls", [Stepper, AsyncStepper])
def test_a_breakpoint_is_hit_where_its_condition_holds(procs: ProcMesh, cls: type[Any]) -> None:
    steppers = procs.spawn("stepper", cls)
    assert len(steppers.divide_until.call(0).get(timeout=60)) == 4
    text = "self.finally_ran < good" if cls is Stepper else "self.num_runs <= good"
    line = line_of(text)
    shown = console(f"break held_actors.py:{line} if current_rank().rank == 2", "break")
    told = f"1  held_actors.py:{line} if current_rank().rank == 2, on 4 procs and those that start"
    assert f"{told} later: return 10 /" in shown
    answer = steppers.divide_until.call(0)
    (hold,) = wait_for_holds(1)
    assert (hold.rank, hold.reason) == (2, f"held_actors.py:{line}")
    console("attach stepper 2", "p good", "c")
    assert list(answer.get(timeout=60).values()) == [2.0] * 4


def test_a_variable_that_is_set_at_a_breakpoint_stays_set(steppers: Any) -> None:
    console(f"break held_actors.py:{line_of('        return value')} ranks 1")
    answer = steppers.echo.call(1)
    wait_for_holds(1)
    console("break clear", "attach stepper 1", "value = 30", "c")
    assert list(answer.get(timeout=60).values()) == [1, 30, 1, 1]


def test_a_set_variable_outlasts_looks_at_it_and_at_callers(steppers: Any) -> None:
    answer = steppers.nested.call(1)
    wait_for_holds(4)
    shown = console(
        "attach stepper 1", "number = 30", "locals", "up", "number = 7", "down", "p number",
        "detach", "attach stepper 1", "!number += 1", "p num", "\t", "p number", "c",
    )  # fmt: skip
    assert "30\n" in shown
    assert "31\n" in shown
    console("continue")
    assert list(answer.get(timeout=60).values()) == [111, 141, 111, 111]


def test_a_breakpoint_that_was_cleared_is_hit_no_more(steppers: Any) -> None:
    line = line_of("        return value")
    shown = console(f"break held_actors.py:{line}", "break clear", "break")
    assert "1 taken away" in shown
    assert "no breakpoint is set" in shown
    assert list(steppers.echo.call(1).get(timeout=60).values()) == [1] * 4


def test_a_breakpoint_is_there_in_procs_that_start_later_and_for_all_consoles() -> None:
    line = line_of("        return value")
    shown = console(f"break held_actors.py:{line} ranks 1")
    assert "on no proc that runs and those that start later" in shown
    made = this_host().spawn_procs({"gpus": 2}).spawn("stepper", Stepper)
    answer = made.echo.call("x")
    (hold,) = wait_for_holds(1)
    assert (hold.rank, hold.line) == (1, line)
    shown = console("break", "break clear 1", "continue")
    assert f"1  held_actors.py:{line} ranks 1" in shown
    assert "1 taken away" in shown
    assert list(answer.get(timeout=60).values()) == ["x", "x"]
    assert list(made.echo.call("y").get(timeout=60).values()) == ["y", "y"]


def test_ranks_may_be_meant_by_their_dimensions() -> None:
    made = this_host().spawn_procs({"hosts": 2, "gpus": 2}).spawn("stepper", Stepper)
    made.echo.call(0).get(timeout=60)
    assert "stepper ranks 2-3 stops at its next call" in console("stop hosts=1")
    assert "procs has no dimension 'racks', but {'hosts': 2, 'gpus': 2}" in console("stop racks=1")
    answer = made.echo.call(1)
    assert [hold.rank for hold in wait_for_holds(2)] == [2, 3]
    console("continue")
    assert list(answer.get(timeout=60).values()) == [1] * 4


_CODE = """
from monarch.actor import Actor, endpoint


class Trainer(Actor):
    @endpoint
    def step(self, number):
        loss = number * 2
        return loss
"""


def test_a_breakpoint_is_kept_where_lines_move_in_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train_moving.py"
    file.write_text(_CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("train_moving")
    procs = this_host().spawn_procs({"gpus": 2})
    trainers = procs.spawn("trainer", module.Trainer)
    assert list(trainers.step.call(1).get(timeout=60).values()) == [2, 2]
    console("break train_moving.py:9 ranks 1")
    file.write_text(
        _CODE.replace("class Trainer", "A = 1\nB = 2\nC = 3\nD = 4\nE = 5\nclass Trainer")
    )
    assert procs.sync_workspace(Workspace(dirs=[tmp_path])).get(timeout=60).ok
    answer = trainers.step.call(4)
    (hold,) = wait_for_holds(1)
    assert (hold.rank, hold.line) == (1, 14)
    shown = console("attach trainer 1", "p loss", "c")
    assert "(Pdb) p loss\n8\n" in shown
    assert list(answer.get(timeout=60).values()) == [8, 8]


def test_a_rank_that_runs_is_looked_at_while_it_goes_on(steppers: Any) -> None:
    answer = steppers.slice(gpus=1).loops.call_one()
    wait_for(lambda: "in loops" in console("where 1"))
    shown = console(
        "attach stepper 1", "p self.loss", "args", "locals", "w", "up", "down", "p nothing", "n",
        "detach", "attach stepper 2",
    )  # fmt: skip
    assert "stepper 1 runs, and is not held: in loops" in shown
    assert "(peek) p self.loss\n0.5\n" in shown
    assert "turns = " in shown
    assert "*** NameError" in shown
    assert "`stop` holds it" in shown
    assert "No debug sessions for actor stepper" in shown  # Rank 2 runs nothing.
    assert not answer.done()
