"""Ctrl-C in each phase of ``monarch run``: it ends soon, with one line and status 130."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.cli.terminal.interrupts import stop_on_interrupt
from tests.support import Program, wait_for

Start = Callable[..., Program]

SOON_SECONDS = 9.0
"""Two on a machine with nothing else to do; less than any timeout that could be waited for."""

COMMAND = """
import sys
sys.argv = ["monarch", "run", {recipe!r}, *{arguments!r}]
{before}
from monarch.cli.entry import main
main()
"""

SLOW_IMPORT = """
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            import time
            print("at it", flush=True)
            for _ in range(600):
                time.sleep(0.1)

sys.meta_path.insert(0, Slow())
"""

HEAD = """
import time
from dataclasses import dataclass
from monarch.actor import Actor, endpoint
from monarch.cli import run as command

@dataclass
class Config:
    size: int = 0

def at_it():
    print("at it", flush=True)
    for _ in range(600):
        # In short ones: a signal that comes just before a sleep does not end it.
        time.sleep(0.1)

class Busy(Actor):
    def __init__(self, where):
        self.where = where
        if where == "making":
            at_it()

    @endpoint
    def step(self):
        if self.where == "step":
            at_it()

    def __cleanup__(self, error):
        if self.where == "cleanup":
            at_it()
"""

RUNS = """
def run(config, procs, display):
    {body}

def _run(config: Config, procs, display): ...
run.__annotations__ = _run.__annotations__
"""

SWALLOWS = """
try:
    at_it()
except BaseException:
    pass
"""

PHASES = {
    "importing the recipe": ("at_it()", "pass"),
    "importing what swallows it": (SWALLOWS, 'print("runs on", flush=True); at_it()'),
    "making actors": ("", 'procs.spawn("busy", Busy, "making").step.call().get()'),
    "in a step": ("", 'procs.spawn("busy", Busy, "step").step.call().get()'),
    "in the recipe itself": ("", 'procs.spawn("busy", Busy, "").step.call().get(); at_it()'),
    "cleaning up": ("", 'procs.spawn("busy", Busy, "cleanup").step.call().get(); at_it()'),
}


def interrupt(running: Program, said: Sequence[str] = ("interrupted",)) -> None:
    """Press Ctrl-C, and look at what comes of it."""
    running.send_signal(signal.SIGINT)
    wait_for(lambda: running.process.poll() is not None, SOON_SECONDS, "its end")
    assert running.wait() == 130, running.story()
    assert [line for line in running.errors if line] == list(said), running.story()


@pytest.fixture
def start(program: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.chdir(tmp_path)

    def start(recipe: str, *arguments: str, before: str = "") -> Program:
        return program(COMMAND.format(recipe=recipe, arguments=arguments, before=before))

    return start


@pytest.mark.parametrize("module", ["click", "monarch.config", "monarch.runtime.node"])
def test_while_the_command_is_imported(start: Start, module: str) -> None:
    running = start("ddp", before="# A new Python\n" + SLOW_IMPORT.format(module=module))
    running.line("at it")
    interrupt(running)


AT_ITS_END = """
import atexit, signal, time

def at_its_end():
    print("at it", flush=True)
    time.sleep(60)

atexit.register(at_its_end)
"""


@pytest.mark.parametrize("number_pressed", [1, 3])
def test_while_it_tidies_up_it_ends_at_once(
    program: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number_pressed: int
) -> None:
    """What there was to say has been said; no traceback follows it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "monarch.toml").touch()
    (tmp_path / "a.py").touch()
    running = program(
        f"{AT_ITS_END}\nimport sys; sys.argv = ['monarch', 'sync', '--explain', 'a.py']\n"
        "from monarch.cli.entry import main; main()"
    )
    running.line("at it", timeout=60)
    for _ in range(number_pressed):
        running.send_signal(signal.SIGINT)
    assert running.wait() == 130, running.story()
    assert [line for line in running.errors if line] == []


@pytest.mark.long_but(1)
@pytest.mark.parametrize("phase", PHASES)
def test_while_a_recipe_is_run(start: Start, tmp_path: Path, phase: str) -> None:
    on_import, body = PHASES[phase]
    (tmp_path / "busy.py").write_text(HEAD + on_import + RUNS.format(body=body))
    running = start("busy.py")
    # The lines of a proc begin with its name.
    wait_for(lambda: [line for line in running.lines if "at it" in line], 60.0)
    # A run that has begun says how it was stopped, and how it goes on.
    interrupt(running, ["interrupted"] if phase.startswith("importing") else [])


def test_a_second_press_does_not_wait_for_what_the_recipe_saves(
    start: Start, tmp_path: Path
) -> None:
    body = "try:\n        at_it()\n    except KeyboardInterrupt:\n        at_it()"
    (tmp_path / "busy.py").write_text(HEAD + RUNS.format(body=body))
    running = start("busy.py")
    running.line("at it", timeout=60)
    running.send_signal(signal.SIGINT)
    running.line("at it")
    interrupt(running, [])


SAVES = """
import os, signal, time
from dataclasses import dataclass
from monarch.actor import ProcMesh
from monarch.runs import Record

@dataclass
class Config:
    size: int = 0

def run(config: Config, procs: ProcMesh, record: Record):
    record.message("at it")
    if config.size:
        out, into = os.pipe()
        os.close(out)
        os.dup2(into, 1)
    while not record.is_stopping:
        record.metrics(2, 2, {"loss": 1.0})
        time.sleep(0.01)
    (record.checkpoint_dir / "saved").touch()
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_else_asks_it_to_stop_lets_it_save(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "saves.py").write_text(SAVES)
    running = start("saves.py")
    running.line("at it", timeout=60)
    running.send_signal(number)
    assert running.wait() == 130, running.story()
    assert list(tmp_path.glob("runs/saves-*/checkpoints/saved"))
    assert running.lines.count("stopping: what was learned is saved after this step") == 1


@pytest.mark.parametrize("can_save", [True, False])
def test_what_cannot_be_saved_is_not_promised(can_save: bool) -> None:
    said: list[str] = []
    record: Any = SimpleNamespace(
        can_save=can_save, is_stopping=False, stop=lambda: None, message=said.append
    )
    with stop_on_interrupt([record]):
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: said)
    assert ("what was learned is saved" in said[0]) is can_save
    assert ("the last checkpoint stays" in said[0]) is not can_save


IN_A_LINE = """
import io, os, signal, sys

class Out(io.RawIOBase):
    num_left = 1

    def writable(self):
        return True

    def write(self, line):
        if b"at it" in bytes(line) and Out.num_left:
            Out.num_left = 0
            os.kill(os.getpid(), signal.SIGTERM)
        return os.write(1, line)

sys.stdout = io.TextIOWrapper(io.BufferedWriter(Out()), line_buffering=True)
"""


def test_who_asks_in_the_middle_of_a_line_is_heard(start: Start, tmp_path: Path) -> None:
    (tmp_path / "saves.py").write_text(SAVES)
    running = start("saves.py", before=IN_A_LINE)
    assert running.wait(60) == 130, running.story()
    assert "stopping: what was learned is saved after this step" in running.lines
    assert list(tmp_path.glob("runs/saves-*/checkpoints/saved"))


def test_under_nohup_it_outlives_the_terminal(start: Start, tmp_path: Path) -> None:
    (tmp_path / "saves.py").write_text(SAVES)
    nohup = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    running = start("saves.py", before=nohup)
    running.line("at it", timeout=60)
    running.send_signal(signal.SIGHUP)
    running.send_signal(signal.SIGINT)
    assert running.wait() == 130, running.story()
    (line,) = [line for line in running.lines if line.startswith("stopping")]
    assert "Ctrl-C again" in line


def test_who_reads_it_may_go_away(start: Start, tmp_path: Path) -> None:
    (tmp_path / "saves.py").write_text(SAVES)
    running = start("saves.py", "size=1")
    assert running.wait(60) == 1, running.story()
    assert list(tmp_path.glob("runs/saves-*/checkpoints/saved"))
    assert not [line for line in running.errors if line], running.story()


def test_while_hosts_are_waited_for(start: Start, tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(HEAD + RUNS.format(body="pass"))
    waits = """
from monarch.actor import HostMesh
import asyncio
async def wait():
    print("at it", flush=True)
    await asyncio.sleep(60)
HostMesh.__await__ = lambda self: wait().__await__()
HostMesh.initialized = property(lambda self: wait())
"""
    running = start("busy.py", before=waits)
    running.line("at it", timeout=60)
    interrupt(running)


@pytest.mark.slow
@pytest.mark.parametrize("line", ["ddp on this machine alone", "step 20/"])
def test_ddp_is_interrupted_while_it_is_set_up_and_while_it_trains(
    start: Start, tmp_path: Path, line: str
) -> None:
    running = start("ddp", "num_epochs=500", "evaluate_every=0")
    running.line(line, timeout=120)
    interrupt(running)
    saved = list(tmp_path.glob("runs/ddp-*/checkpoints/*.pt"))
    assert bool(saved) == line.startswith("step")
    wait_for(lambda: not [thread for thread in running._readers if thread.is_alive()])
