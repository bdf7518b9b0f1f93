"""Code that fails as it runs, in a loop of one's own: held, put back, and gone on with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.actor import Actor, ActorError, SupervisionError, context, endpoint, this_host
from monarch.config import configured
from monarch.config_file import live
from monarch.observe.json_rows import json_rows
from monarch.runs import LineDisplay, LiveConfig
from monarch.runs.hold.hold_report import HoldReport
from monarch.runs.hold.holding import Holding
from monarch.runs.hold.run_memory import RunMemory
from monarch.runs.record.edits import OnEditError
from monarch.runs.record.record import Record
from monarch.runs.record.slowness import ASKED, HOLD
from monarch.runs.recover.deaths import Deaths
from monarch.runs.recover.ranks import RunFailed
from monarch.runs.recover.recovery import BeginAgain
from monarch.runtime import process
from monarch.runtime.client_agent import client
from monarch.runtime.hosts.bulletins import post
from monarch.runtime.run_gate import RunGate
from monarch.wire.bulletin import Bulletin
from monarch_sync import SyncReport, Workspace
from tests.recipes.held_run import importable
from tests.support import wait_for

pytestmark = pytest.mark.timeout(120)

GOOD = "def look(total):\n    return total\n"
LATER = "def look(total):\n    if total >= 6:\n        return totol\n    return total\n"
# What is no `Exception`, and one that cannot even be printed; and what is told of each.
ENDING = {
    "raise SystemExit(3)": "SystemExit: 3",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "raise GeneratorExit('over')": "GeneratorExit: over",
    "raise type('Odd', (BaseException,), {})('own')": "Odd: own",
    "raise type('Mute', (Exception,), {'__str__': lambda self: None.mute})": "Mute",
}
# Rank 1 dies; the other waits for what only that one would have done.
DIES = """import os
from threading import Lock

from monarch.actor import context


def look(total):
    if context().actor_instance.rank.rank:
        os._exit(3)
    lock = Lock()
    with lock, lock:
        return total
"""
LOOP_NOW = "def look(total):\n    open({mark!r}, 'w').close()\n    while True:\n        pass\n"


class Adder(Actor):
    def __init__(self) -> None:
        self.total = 0
        self.rank = context().actor_instance.rank.rank

    @endpoint
    def add(self) -> tuple[int, int]:
        import amounts  # type: ignore[import-not-found]

        self.total += 1
        amounts.look(self.total)
        return self.total, context().generation

    @endpoint
    def newest_code(self) -> int:
        return process.current().gate.code_generation


class Telling(LineDisplay):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)

    def phase(self, text: str) -> None: ...


class Loop:
    """Two ranks, which count; the test edits ``amounts.py``."""

    def __init__(self, root: Path, policy: OnEditError) -> None:
        self.root = root / "project"
        self.root.mkdir()
        (self.root / "amounts.py").write_text(GOOD)
        self._undo = importable(self.root)
        self.workspace = Workspace(dirs={self.root: ""})
        self.display = Telling()
        self.record = Record(root / "run", self.display)
        self.record.edits.policy = policy
        self.begin()

    def begin(self) -> None:
        self.procs = this_host().spawn_procs({"procs": 2}, preload=["torch"])
        self.adders = self.procs.spawn("adder", Adder)
        self.holding = Holding(self.procs, self.adders, self.record, seconds=60.0)
        self.total = 0

    def begin_again(self) -> None:
        """In new processes, as runs do where a rank has died."""
        with configured(stop_timeout_seconds=1.0, cleanup_timeout_seconds=1.0):
            self.procs.stop().get(timeout=20.0)
        self.begin()

    def quick_steps(self) -> None:
        """Two steps, of which it is remembered that they took a moment, however busy the machine
        is: what such a step took says how long one on new code may take."""
        self.steps(2)
        edits = self.record.edits
        edits._firsts.clear()
        edits._usual.clear()
        edits.went_well("add", edits.good["add"], 0.01)

    def steps(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.total += 1
            answers = self.holding.ask(self.adders.add, doing=f"step {self.total}")
            assert {total for total, _ in answers} == {self.total}, answers

    def push(self, text: str) -> SyncReport:
        (self.root / "amounts.py").write_text(text)
        report = asyncio.run(this_host().sync_workspace(self.workspace))
        assert report.ok, report
        return report

    def steps_with_a_mend(self, num_steps: int) -> str:
        """One of them is held, until somebody else has mended the code. What was told."""

        def mend() -> None:
            wait_for(self.is_held, 30.0)
            self.push(GOOD)

        return self.steps_beside(mend, num_steps)

    def steps_beside(self, act: Callable[[], object], num_steps: int) -> str:
        thread = threading.Thread(target=act, name="aside")
        thread.start()
        self.steps(num_steps)
        thread.join(60.0)
        assert not thread.is_alive()
        return "\n".join(self.display.lines)

    def held(self) -> list[dict[str, Any]]:
        """The events."""
        rows = json_rows(self.record.folder / "events.jsonl")
        return [event for event in rows if event["kind"] == "held"]

    def is_held(self) -> bool:
        return any("The run holds" in line for line in self.display.lines)

    def close(self) -> None:
        self._undo()


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Callable[[OnEditError], Loop]]:
    made: list[Loop] = []

    def make(policy: OnEditError) -> Loop:
        made.append(Loop(tmp_path, policy))
        return made[-1]

    with configured(edit_patience_seconds=20.0):
        yield make
    for one in made:
        one.close()


@pytest.mark.long
def test_a_branch_that_first_runs_later_holds_in_place_as_well(
    loop: Callable[[OnEditError], Loop],
) -> None:
    run = loop("hold")
    run.steps(2)
    later = run.push(LATER).generation
    run.steps(3)
    told = run.steps_with_a_mend(3)
    assert f"step 6 failed on generation {later}: NameError: name 'totol'" in told
    assert "no rank has changed anything by it" in told
    assert f"step 6 went well on generation {later + 1}" in told


@pytest.mark.long
def test_a_push_that_no_process_has_loaded_is_no_new_code(
    loop: Callable[[OnEditError], Loop],
) -> None:
    """As of a log that the run itself writes into the workspace: no state is copied for it."""
    run = loop("hold")
    run.steps(2)
    before = client().gate.code_generation
    (run.root / "run.log").write_text("a line")
    asyncio.run(this_host().sync_workspace(run.workspace))
    assert client().generation > client().gate.code_generation == before
    assert run.adders.newest_code.call().get(timeout=60).values() == [before, before]
    run.steps(2)
    later = run.push(f"{GOOD}# edited\n").generation
    assert client().gate.code_generation == later  # The ranks alone have loaded it.
    assert run.adders.newest_code.call().get(timeout=60).values() == [later, later]


@pytest.mark.long
def test_what_would_end_an_actor_holds_as_any_error(loop: Callable[[OnEditError], Loop]) -> None:
    run = loop("hold")
    run.steps(2)
    for number, (raised, told) in enumerate(ENDING.items(), 1):
        run.push(GOOD.replace("    return", f"    {raised}\n    return"))

        def mend(number: int = number) -> None:
            wait_for(lambda: len(run.held()) == number, 30.0)
            run.push(f"{GOOD}# {number}\n")

        run.steps_beside(mend, 1)
        held = run.held()[-1]
        assert (held["error"], held["file"]) == (told, "amounts.py"), held
        assert held["line"] > 0, held
        assert held["in_place"], held


@pytest.mark.long
def test_a_mend_that_is_pushed_during_a_loop_does_not_wait_for_the_loop(
    loop: Callable[[OnEditError], Loop],
) -> None:
    run = loop("hold")
    run.steps(3)
    mark = run.root.with_name("loops")
    loops = run.push(LOOP_NOW.format(mark=str(mark))).generation

    def mend() -> None:
        wait_for(mark.exists, 30.0)
        run.push(GOOD + "# mended\n")

    with configured(edit_patience_seconds=1000.0):
        told = run.steps_beside(mend, 2)
    assert f"step 4 went well on generation {loops + 1}" in told


def slow_events(run: Loop) -> list[str]:
    rows = json_rows(run.record.folder / "events.jsonl")
    return [event["text"] for event in rows if event["kind"] == "slow"]


SLEEPS = "import time\n\n\ndef look(total):\n    time.sleep({seconds})\n    return total\n"
WORKS = """import time


def look(total):
    end = time.monotonic() + {seconds}
    while time.monotonic() < end:
        sum(range(1000))
    return total
"""
LOCKED = """from threading import Lock


def look(total):
    lock = Lock()
    with lock, lock:
        return total
"""
ENDLESS = "def look(total):\n    while True:\n        pass\n"


@pytest.mark.parametrize("text", [SLEEPS, WORKS], ids=["sleeps", "works"])
@pytest.mark.long
def test_a_right_edit_that_is_slow_is_told_of_and_goes_on(
    loop: Callable[[OnEditError], Loop], text: str
) -> None:
    """It sleeps for three times as long as edits are given; it works for longer than ranks that do
    nothing are given."""
    run = loop("hold")
    run.quick_steps()
    run.push(text.format(seconds=3.0 if text is SLEEPS else 6.0))
    with configured(edit_patience_seconds=1.0):
        run.steps(1)
    assert not run.held()
    first, *_, last = told = slow_events(run)
    assert first.startswith("step 3 takes "), first
    # Ranks that work may at first be too busy to say where they are.
    assert any("all ranks are in `look`, amounts.py:" in one for one in told), told
    assert "k holds it, + gives it more time" in first
    assert "edit_patience_seconds = 1" in first
    assert last.startswith("step 3 has ended after ")
    run.push(GOOD)
    run.steps(2)


@pytest.mark.long
def test_nobody_ends_ranks_that_cannot_be_interrupted_before_there_is_a_mend(
    loop: Callable[[OnEditError], Loop],
) -> None:
    run = loop("hold")
    run.holding.come_back_seconds = 0.5
    run.quick_steps()
    run.push(LOCKED)

    def mend() -> None:
        wait_for(lambda: any("cannot be interrupted" in one for one in slow_events(run)), 60.0)
        assert not run.held()
        run.push(GOOD)

    with configured(edit_patience_seconds=0.5), pytest.raises(BeginAgain):
        run.steps_beside(mend, 1)


@pytest.mark.parametrize("policy", ["hold", "rollback"])
@pytest.mark.long
def test_a_loop_without_end_ends_some_time(
    loop: Callable[[OnEditError], Loop], policy: OnEditError
) -> None:
    run = loop(policy)
    run.record.code = SimpleNamespace(  # type: ignore[assignment]
        roll_back=lambda good: run.push(GOOD),
        generation=0,
        move_to=lambda generation: None,
        is_loaded_since=lambda generation: True,
    )
    run.quick_steps()
    run.push(ENDLESS)
    with configured(edit_patience_seconds=0.2):
        if policy == "hold":
            run.steps_with_a_mend(2)
        else:
            run.steps(2)
    assert "has not ended within" in "\n".join(run.display.lines)
    assert run.total == 4


@pytest.mark.long
def test_where_nobody_sits_what_cannot_be_interrupted_ends_some_time(
    loop: Callable[[OnEditError], Loop],
) -> None:
    gone_back_to: list[int] = []
    run = loop("rollback")
    run.holding.come_back_seconds = 0.5

    def roll_back(good: int) -> SyncReport:
        gone_back_to.append(good)
        return run.push(GOOD)

    run.record.code = SimpleNamespace(  # type: ignore[assignment]
        roll_back=roll_back,
        generation=0,
        move_to=lambda generation: None,
        is_loaded_since=lambda generation: True,
    )
    run.quick_steps()
    bad = run.push(LOCKED).generation
    with configured(edit_patience_seconds=0.2), pytest.raises(BeginAgain):
        run.steps(1)
    assert gone_back_to == [bad - 1]
    assert any("cannot be interrupted" in one for one in slow_events(run)), "not at once"


@pytest.mark.long
def test_ctrl_c_in_a_step_that_is_slow_leaves_it(loop: Callable[[OnEditError], Loop]) -> None:
    run = loop("hold")
    run.quick_steps()
    run.push(ENDLESS)

    def stop() -> None:
        wait_for(lambda: bool(slow_events(run)), 60.0)
        run.record.stop()

    with configured(edit_patience_seconds=3.0), run.holding.until_stopped():
        run.steps_beside(stop, 1)
        pytest.fail("it has gone on")
    (held,) = run.held()
    assert held["in_place"]


@pytest.mark.long
@pytest.mark.parametrize("key", ["k", "+"])
def test_a_person_has_it_held_or_gives_it_more_time(
    loop: Callable[[OnEditError], Loop], key: str
) -> None:
    run = loop("hold")
    pressed = [key]
    run.record.listen_to_keys = lambda: nullcontext(
        SimpleNamespace(take=lambda: pressed.pop() if pressed else "")
    )
    run.quick_steps()
    run.push(ENDLESS if key == "k" else WORKS.format(seconds=7.0))
    with configured(edit_patience_seconds=1.0 if key == "k" else 0.2):
        if key == "k":
            run.steps_with_a_mend(1)
            (held,) = run.held()
            assert held["in_place"]
            assert (held["file"], held["ranks"]) == ("amounts.py", [0, 1])
        else:
            run.steps(1)  # Alone, it would be held after 4 seconds.
            assert not run.held()
            assert any("to make progress" in one for one in slow_events(run))


@pytest.mark.long
def test_what_is_wanted_from_elsewhere_comes_by_a_bulletin(
    loop: Callable[[OnEditError], Loop],
) -> None:
    run = loop("hold")
    run.quick_steps()
    run.push(ENDLESS)

    def hold_and_mend() -> None:
        wait_for(lambda: bool(slow_events(run)), 60.0)

        def is_held() -> bool:
            post(process.current().node, this_host()._sync_hosts(), Bulletin(ASKED, HOLD))
            return run.is_held()

        wait_for(is_held, 60.0)
        run.push(GOOD)

    with configured(edit_patience_seconds=3.0):
        run.steps_beside(hold_and_mend, 2)
    assert len(run.held()) == 1


@pytest.mark.long
def test_the_config_says_how_long_is_long_also_while_it_lasts(
    loop: Callable[[OnEditError], Loop], tmp_path: Path
) -> None:
    @dataclass(frozen=True)
    class Config:
        edit_patience_seconds: float | None = live(None)

    wanted = [Config(1000.0)]
    file = tmp_path / "config.toml"
    file.touch()
    run = loop("hold")
    run.record.config_file = LiveConfig(Config(1000.0), {file: lambda: wanted[0]})
    run.quick_steps()
    mark = run.root.with_name("loops")
    run.push(LOOP_NOW.format(mark=str(mark)))

    def lower() -> None:
        wait_for(mark.exists, 60.0)
        assert not slow_events(run)
        wanted[0] = Config(0.5)
        file.write_text("edit_patience_seconds = 0.5\n")
        wait_for(run.is_held, 60.0)
        run.push(GOOD)

    run.steps_beside(lower, 1)
    assert "edit_patience_seconds = 0.5" in slow_events(run)[0]


@pytest.mark.long
def test_a_rank_that_waits_for_a_dead_one_does_not_keep_the_mend_away(
    loop: Callable[[OnEditError], Loop],
) -> None:
    run = loop("hold")
    run.steps(2)
    bad = run.push(DIES).generation
    with Deaths():
        with pytest.raises(SupervisionError):
            run.steps(1)
        run.begin_again()

        def mend() -> None:
            wait_for(run.is_held, 30.0)
            run.push(GOOD)

        assert run.record.can_save
        with pytest.raises(BeginAgain, match="exited with status 3"):
            run.steps_beside(mend, 1)
        assert not run.record.can_save
        run.begin_again()
        run.steps(2)
        HoldReport(run.record, run.procs).over("step 2", bad + 1)  # as attempts tell it
        assert run.record.can_save
    assert f"step 1 failed on generation {bad}" in "\n".join(run.display.lines)


@pytest.mark.long
def test_code_that_was_saved_while_the_run_began_holds_in_its_first_step(
    loop: Callable[[OnEditError], Loop],
) -> None:
    run = loop("hold")
    run.push(GOOD)
    bad = run.push("def look(total):\n    return totol\n").generation
    told = run.steps_with_a_mend(2)
    assert f"step 1 failed on generation {bad}: NameError: name 'totol'" in told
    assert "save a fix, `await procs.sync_workspace(...)`, and run it again" in told
    assert "no rank has changed anything by it" in told
    assert f"step 1 went well on generation {bad + 1}" in told


@pytest.mark.long
def test_where_nobody_sits_code_that_was_saved_as_the_run_began_is_gone_back_from(
    loop: Callable[[OnEditError], Loop],
) -> None:
    run = loop("rollback")
    run.push(GOOD)
    first = run.record.edits.good[""]
    gone_back_to: list[int] = []

    def roll_back(good: int) -> SyncReport:
        gone_back_to.append(good)
        return run.push(GOOD + "# back\n")

    run.record.code = SimpleNamespace(  # type: ignore[assignment]
        roll_back=roll_back,
        generation=0,
        move_to=lambda generation: None,
        is_loaded_since=lambda generation: True,
    )
    run.push("def look(total):\n    return totol\n")
    run.steps(2)
    assert gone_back_to == [first]


@pytest.mark.long_but(1)
@pytest.mark.parametrize("watched", [True, False])
def test_code_that_was_never_edited_holds_only_where_a_person_watches(
    loop: Callable[[OnEditError], Loop], monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    monkeypatch.setattr(HoldReport, "is_watched", lambda self: watched)
    run = loop("hold")
    (run.root / "amounts.py").write_text("def look(total):\n    return totol\n")
    if not watched:
        with pytest.raises(ActorError, match="totol"):
            run.steps(1)
        assert not run.is_held()
        return
    told = run.steps_with_a_mend(3)
    assert "step 1 failed on generation" in told
    assert "no rank has changed anything by it" in told
    assert "step 1 went well on" in told


@pytest.mark.long
def test_what_has_gone_well_once_fails_as_ever_on_code_that_was_never_edited(
    loop: Callable[[OnEditError], Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HoldReport, "is_watched", lambda self: True)
    run = loop("hold")
    (run.root / "amounts.py").write_text(LATER)
    run.steps(5)
    with pytest.raises(ActorError, match="totol"):
        run.steps(1)


@pytest.mark.long_but(1)
@pytest.mark.parametrize("policy", ["rollback", "end"])
def test_where_nobody_sits_code_that_cannot_start_ends_the_run(
    loop: Callable[[OnEditError], Loop], monkeypatch: pytest.MonkeyPatch, policy: OnEditError
) -> None:
    monkeypatch.setattr(HoldReport, "is_watched", lambda self: True)
    run = loop(policy)
    (run.root / "amounts.py").write_text("def look(total):\n    return totol\n")
    with pytest.raises(ActorError, match="totol"):
        run.steps(1)


@pytest.mark.long
def test_where_nobody_sits_it_goes_back_as_far_as_it_takes(
    loop: Callable[[OnEditError], Loop],
) -> None:
    run = loop("rollback")
    gone_back_to: list[int] = []

    def roll_back(good: int) -> SyncReport:
        gone_back_to.append(good)
        text = {first: GOOD, first + 1: LATER}[good]
        return run.push(text + f"# {len(gone_back_to)}\n")

    run.record.code = SimpleNamespace(  # type: ignore[assignment]
        roll_back=roll_back,
        generation=0,
        move_to=lambda generation: None,
        is_loaded_since=lambda generation: True,
    )
    first = run.push(GOOD + "# first\n").generation
    run.steps(2)
    run.push(LATER)
    run.steps(1)
    run.push(LATER + "# and another\n")
    run.steps(4)
    assert gone_back_to == [first + 1, first]
    last = run.push("def look(total):\n    raise KeyError(total)\n").generation
    run.record.edits.origins[last] = first  # as if what the run began with failed, too
    with pytest.raises(RunFailed, match="Going back has not helped"):
        run.steps(1)


@pytest.mark.long
def test_who_interrupts_a_hold_is_not_told_of_the_failure_again(
    loop: Callable[[OnEditError], Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = loop("hold")
    run.steps(1)
    run.push("def look(total):\n    return totol\n")

    def interrupted(gate: RunGate, generation: int, timeout: float) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunGate, "wait_beyond", interrupted)
    with pytest.raises(KeyboardInterrupt, match="step 2 was not made again") as caught:
        run.steps(1)
    monkeypatch.undo()
    assert caught.value.__suppress_context__
    depth, where = 0, caught.value.__traceback__
    while where is not None:
        depth, where = depth + 1, where.tb_next
    assert depth <= 4
    run.total -= 1
    run.push(GOOD + "# mended\n")
    run.steps(2)


def own_loop(run: Loop, errors: str = "") -> Holding:
    """In a script: nobody sits at a terminal, and there is no record."""
    with configured(on_edit_error=errors):
        holding = Holding(run.procs, run.adders)
    run.holding = holding
    return holding


@pytest.mark.long
def test_in_a_script_an_error_that_no_push_can_reach_is_raised_as_it_is(
    loop: Callable[[OnEditError], Loop],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    run = loop("end")
    holding = own_loop(run)
    run.steps(1)
    run.push("def look(total):\n    return totol\n")
    with pytest.raises(ActorError, match=r"(?s)amounts\.py.*NameError: name 'totol'"):
        holding.ask(run.adders.add, doing="step 2")
    told = capsys.readouterr().err
    assert "amounts.py:2" in told
    assert "MONARCH_ON_EDIT_ERROR=hold" in told
    run.push(GOOD + "# fixed\n")
    run.steps(1)  # as if the failed one had never been


@pytest.mark.long
def test_in_a_script_it_holds_where_a_push_can_reach_it(
    loop: Callable[[OnEditError], Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.setattr(HoldReport, "is_of_this_program", False)
    run = loop("end")
    holding = own_loop(run)
    run.steps(1)
    run.push("def look(total):\n    return totol\n")
    told: list[str] = []
    monkeypatch.setattr(HoldReport, "_show", lambda self, text: told.append(text))

    def fix() -> None:
        wait_for(lambda: any("It holds" in text for text in told), 30.0)
        run.push(GOOD + "# fixed\n")

    assert holding.edits.policy == "hold"
    run.steps_beside(fix, 2)


def test_in_a_script_what_was_asked_for_is_done(
    loop: Callable[[OnEditError], Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    run = loop("end")
    with configured(on_edit_error="end"):
        holding = own_loop(run, "end")
        run.steps(1)
        run.push("def look(total):\n    return totol\n")
        with pytest.raises(RunFailed, match="totol"):
            holding.ask(run.adders.add)


class Learner(Actor):
    def __init__(self) -> None:
        import torch

        self.weights = torch.zeros(8, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.weights])
        self.num_steps = 0

    @endpoint
    def meet(self, change: float) -> None:
        if change:
            self.weights.detach().add_(change)

    @endpoint
    def learn(self) -> float:
        import amounts

        self.num_steps += 1
        self.optimizer.zero_grad()
        (self.weights - 1).square().sum().backward()
        self.optimizer.step()
        amounts.look(self.num_steps)
        return float(self.weights.detach().sum())

    def __state__(self) -> dict[str, Any]:
        return {"step": self.num_steps, "weights": self.weights.detach()}


@pytest.mark.long
@pytest.mark.parametrize("change", [0.0, 1.0], ids=["prepared", "changed"])
def test_a_repeated_call_uses_the_copy_that_ranks_were_put_back_from(
    loop: Callable[[OnEditError], Loop], change: float
) -> None:
    run = loop("hold")
    learners = run.procs.spawn("learner", Learner)
    memory = RunMemory(RunMemory.new_owner(), this_host(), 2)

    def rejoin() -> None:
        for part in (0.0, change):
            learners.meet.call(part).get()

    holding = Holding(run.procs, learners, run.record, rejoin=rejoin, memory=memory)
    for _ in range(2):
        holding.ask(learners.learn)
    run.push("def look(total):\n    return totol\n")

    def mend() -> None:
        wait_for(run.is_held, 30.0)
        run.push(GOOD)

    mending = threading.Thread(target=mend)
    mending.start()
    learned = holding.ask(learners.learn)
    mending.join()
    copies = memory.newest()
    memory.forget()
    assert copies is not None
    # What prepares the repeated call makes no copy; where it has changed weights, the call does.
    assert (copies.step, copies.whole[0].marks.number) == (2, 1 if change == 0 else 2)
    assert learned == pytest.approx([8 * (3e-3 + change)] * 2, rel=1e-2)
