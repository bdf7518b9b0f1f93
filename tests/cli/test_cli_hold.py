"""A run that holds, as its own terminal, a watch and the other commands tell of it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.cli.sync.key_commands import KeyCommands
from monarch.runs.record.slowness import ASKED, HOLD, MORE
from monarch.wire.bulletin import Bulletin
from tests.cli.on_terminal import on_terminal
from tests.support import Program, wait_for

from .conftest import Folder

Command = Callable[..., Program]

# A loop of one's own: the three lines are those with `holding`.
RECIPE = '''
"""Counts on every proc."""

from __future__ import annotations

import time
from dataclasses import dataclass

import amounts
from monarch.actor import Actor, ProcMesh, context, endpoint
from monarch.runs import Holding, Record
from monarch.runs.hold.holding import Holding


@dataclass(frozen=True)
class Config:
    num_steps: int = 100_000


class Adder(Actor):
    def __init__(self):
        self.total = 0

    @endpoint
    def add(self) -> tuple[int, int]:
        self.total += 1
        amounts.look(self.total)
        return self.total, context().generation


def run(config: Config, procs: ProcMesh, record: Record) -> None:
    adders = procs.spawn("adder", Adder)
    holding = Holding(procs, adders, record)
    with holding.until_stopped():
        for step in range(1, config.num_steps + 1):
            if record.is_stopping:
                break
            answers = holding.ask(adders.add, doing=f"step {step}")
            assert {total for total, _ in answers} == {step}, (step, answers)
            generation = min(generation for _, generation in answers)
            record.metrics(step, config.num_steps, {"total": step, "generation": generation})
            time.sleep(0.01)
'''
GOOD = "def look(total):\n    return total\n"
BAD = "def look(total):\n    return totol\n"


@pytest.fixture
def project(folder: Folder) -> Folder:
    folder.write("amounts.py", GOOD)
    folder.write("adding.py", RECIPE)
    folder.monarch("apply")
    return folder


def events(folder: Folder, kind: str) -> list[dict[str, Any]]:
    rows = (folder.path / "runs/latest/events.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, rows) if row["kind"] == kind]


def told(program: Program, words: str) -> None:
    """It says so, sooner or later."""
    try:
        wait_for(lambda: any(words in line for line in program.lines), 60.0)
    except AssertionError:
        raise AssertionError(f"not told: {words}\n{program.story()}") from None


def begun(folder: Folder, command: Command, *options: str) -> Program:
    running = command("run", "adding.py", *options)
    metrics = folder.path / "runs/latest/metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, 60.0, "the first steps")
    return running


def interrupt(program: Program, status: int) -> None:
    program.send_signal(signal.SIGINT)
    assert program.wait(60) == status, program.story()


@pytest.mark.long
@pytest.mark.timeout(200)
def test_both_terminals_tell_and_the_next_save_goes_on(project: Folder, command: Command) -> None:
    watcher = command("sync", "--watch")
    watcher.line("watching ", timeout=60)
    running = begun(project, command, "--on-edit-error", "hold")

    project.write("amounts.py", BAD)
    for terminal in (running, watcher):
        told(terminal, "failed on generation 2: NameError: name 'totol' is not defined")
        told(terminal, "amounts.py:2, on ranks 0, 1")
        told(terminal, "`monarch sync rollback`")
    assert " held " in project.monarch("runs", "ls")
    assert "failed on generation 2" in project.monarch("status")

    project.write("amounts.py", BAD.replace("totol", "tatal"))  # a second failing save
    told(running, "failed on generation 3")
    told(watcher, "failed on generation 3")
    told(running, "The run holds, as before: save a fix, or go back (b), or Ctrl-C.")
    assert running.story().count("no rank has changed anything by it") == 1

    # Of the two before, one is as bad as the other.
    assert "is what 1 was" in project.monarch("sync", "rollback")
    told(running, "the run goes on")
    told(watcher, "the run goes on")
    assert " running " in project.monarch("runs", "ls")
    # A host may hear of it later than the watch, which hears of it from any.
    wait_for(lambda: "failed on" not in project.monarch("status"))

    project.write("amounts.py", BAD + "# again\n")
    told(running, "failed on generation 5")
    interrupt(running, 130)  # out of the hold
    interrupt(watcher, 0)
    assert [one["generation"] for one in events(project, "held")] == [2, 3, 5]
    assert len(events(project, "mended")) == 1
    assert " stopped " in project.monarch("runs", "ls")


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_slow_step_is_told_and_held_by_a_command(
    project: Folder, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONARCH_EDIT_PATIENCE_SECONDS", "2")
    running = begun(project, command, "--on-edit-error", "hold")
    project.write("amounts.py", "def look(total):\n    while True:\n        pass\n")
    project.monarch("sync")
    told(running, "all ranks are in `look`, amounts.py:")
    assert "more time" in project.monarch("runs", "wait")
    told(running, "to make progress, and")

    def is_held() -> bool:
        assert "is held" in project.monarch("runs", "hold")
        return bool(events(project, "held"))

    wait_for(is_held, 60.0)
    (held,) = events(project, "held")
    assert held["in_place"]
    project.write("amounts.py", GOOD)
    project.monarch("sync")
    told(running, "the run goes on")
    interrupt(running, 130)


@pytest.mark.long
@pytest.mark.timeout(200)
def test_k_in_the_terminal_of_the_run_holds_a_slow_step(
    project: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONARCH_EDIT_PATIENCE_SECONDS", "2")
    with on_terminal(project.path, "run", "adding.py", columns=200) as shown:
        metrics = project.path / "runs/latest/metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, 90.0, "the first steps")
        project.write("amounts.py", "def look(total):\n    while True:\n        pass\n")
        project.monarch("sync")
        shown.until("k holds it, + gives it more time")
        shown.press("k")
        shown.until("The run holds")
        project.write("amounts.py", GOOD)
        project.monarch("sync")
        shown.until("the run goes on")
        shown.press("\x03")
        assert shown.end() == 130


# What a recipe does where ranks that should be alike are not.
COMES_APART = """\
            if step == 5 and not is_asked:
                is_asked = True
                try:
                    holding.apart("the comparison after step 5", "rank 1 differs from rank 0", 0)
                    record.message("all have what rank 0 has")
                except BeginAgain:
                    record.message("all have what the checkpoint has")
                holding.together()
"""


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("key", ["t", "c"])
@pytest.mark.parametrize("where", ["in its terminal", "in a watch"])
def test_a_key_answers_for_ranks_that_have_come_apart(
    project: Folder, command: Command, key: str, where: str
) -> None:
    recipe = RECIPE.replace(
        "            time.sleep(0.01)\n", f"{COMES_APART}            time.sleep(0.01)\n"
    )
    recipe = recipe.replace("    adders = ", "    is_asked = False\n    adders = ")
    recipe = recipe.replace(
        "import Holding, Record",
        "import Holding, Record\nfrom monarch.runs.recover.recovery import BeginAgain",
    )
    project.write("adding.py", recipe)
    told = {"t": "all have what rank 0 has", "c": "all have what the checkpoint has"}[key]
    question = "(t) all ranks take the state of rank 0"
    if where == "in a watch":
        running = command("run", "adding.py", "--on-edit-error", "hold")
        with on_terminal(project.path, "sync", "--watch", columns=200) as watch:
            watch.until("q quit")
            watch.until(question)
            watch.press("x")  # means nothing
            watch.press(key)
            running.line(told, timeout=60)
            watch.press("q")
            assert watch.end() == 0
        interrupt(running, 130)
        return
    with on_terminal(project.path, "run", "adding.py", columns=200) as shown:
        shown.until(question)
        assert "rank 1 differs from rank 0" in shown.text
        shown.press("x")
        shown.press(key)
        shown.until(told)
        assert "traceback" not in shown.text.lower()
        shown.press("\x03")
        assert shown.end() == 130
        assert shown.settings == shown.settings_before


def test_keys_of_a_watch_ask_the_run() -> None:
    pressed, posted = ["+", "k"], list[Bulletin]()
    keys = SimpleNamespace(take=lambda: pressed.pop() if pressed else "")
    there: Any = SimpleNamespace(post=posted.append)
    nothing: Any = None
    commands = KeyCommands(
        keys, nothing, nothing, lambda: pytest.fail("pushed"), best_effort=False  # type: ignore[arg-type]
    )  # fmt: skip
    commands.do_all(there, nothing)
    assert [(one.key, one.kind) for one in posted] == [(ASKED, HOLD), (ASKED, MORE)]


@pytest.mark.long
@pytest.mark.timeout(200)
def test_where_nobody_sits_it_goes_back_to_what_worked(project: Folder, command: Command) -> None:
    project.monarch("sync")  # The run finds all of it there.
    running = begun(project, command)
    project.write("amounts.py", BAD)
    project.monarch("sync")
    told(running, "failed on generation 2")
    told(running, "generation 3 is what 1 was; going on")
    told(running, "the run goes on")
    assert " running " in project.monarch("runs", "ls")
    interrupt(running, 130)
    (back,) = events(project, "rolled_back")
    assert (back["generation"], back["good"]) == (3, 1)


@pytest.mark.long
@pytest.mark.timeout(200)
def test_or_it_ends_and_says_what_it_was(project: Folder, command: Command) -> None:
    running = begun(project, command, "--on-edit-error", "end")
    project.write("amounts.py", BAD)
    project.monarch("sync")
    assert running.wait(60) == 1
    story = running.story()
    assert "failed on generation 2: NameError" in story
    assert "the first on code that was saved since generation 1 went well" in story
    assert "`monarch sync rollback 1`" in story
    assert "monarch run adding.py" in story


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_typo_of_before_the_first_step_holds_where_a_watch_is_there(
    project: Folder, command: Command
) -> None:
    project.write("amounts.py", BAD)
    watcher = command("sync", "--watch")
    watcher.line("watching ", timeout=60)
    running = command("run", "adding.py", "--on-edit-error", "hold")
    for terminal in (running, watcher):
        told(terminal, "step 1 failed on generation ")
        told(terminal, "amounts.py:2, on ranks 0, 1")
    assert "rollback" not in running.story(), "there is nothing to go back to"
    assert " held " in project.monarch("runs", "ls")
    project.write("amounts.py", GOOD)
    told(running, "step 1 went well on generation ")
    interrupt(running, 130)
    interrupt(watcher, 0)


@pytest.mark.long
@pytest.mark.timeout(200)
def test_without_a_watch_it_ends_the_run(project: Folder, command: Command) -> None:
    project.write("amounts.py", BAD)
    running = command("run", "adding.py", "--on-edit-error", "hold")
    assert running.wait(60) == 1
    story = running.story()
    assert "NameError: name 'totol' is not defined" in story
    assert "to begin again: monarch run adding.py" in story
