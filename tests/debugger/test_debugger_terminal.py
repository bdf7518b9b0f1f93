"""`monarch debug` as a person has it: a process at a terminal, beside the program that is held."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from monarch.config import runtime_dir
from tests.cli.on_terminal import on_terminal
from tests.support import Program, is_running, wait_for

pytestmark = pytest.mark.timeout(240)

_HELD = """
    import time
    from monarch.actor import this_host
    from monarch.config import configure
    from monarch.runtime.client_agent import client
    from tests.debugger.held_actors import Stepper

    configure(breakpoint="wait")
    steppers = this_host().spawn_procs({"gpus": 2}).spawn("stepper", Stepper)
    answer = steppers.step.call(1)
    while len(client().holds.standing()) < 2:
        time.sleep(0.01)
    print("standing", *[hold.pid for hold in client().holds.standing()], flush=True)
    print("answered", list(answer.get().values()), flush=True)
"""

_TRIES = """
    import os, socket
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    kinds = []
    for path in os.environ["SOCKETS"].split(":"):
        with socket.socket(socket.AF_UNIX) as end:
            try:
                end.connect(path)
                kinds.append("let in")
            except OSError as error:
                kinds.append(type(error).__name__)
    print("tried", len(kinds), *sorted(set(kinds)), flush=True)
"""


@pytest.fixture
def held(program: Callable[..., Program]) -> Program:
    """A program both of whose ranks stand."""
    return program(_HELD, PYTHONPATH=str(Path(__file__).parents[2]))


def _held_pids(held: Program) -> list[int]:
    return [int(pid) for pid in held.line("standing", 90.0).split()]


def _typed(text: str, **how: Any) -> str:
    """What a console without a terminal shows."""
    command = [sys.executable, "-m", "monarch.cli.main", "debug"]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=90, check=False, **how
    )
    return done.stdout + done.stderr


def test_a_rank_to_attach_to_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "monarch.cli.main", "debug", "nobody", "3"],
        input="list\n", capture_output=True, text=True, timeout=90, check=False, cwd=tmp_path,
    )  # fmt: skip
    why = "there is nothing to attach to: No debug sessions for actor nobody"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"monarch: {why}\n")


def _listening(pids: list[int]) -> list[Any]:
    of_all = [one for pid in pids for one in psutil.Process(pid).net_connections("inet")]
    return [one.laddr for one in of_all if one.status == psutil.CONN_LISTEN]


@pytest.mark.long
def test_a_person_attaches_completes_recalls_and_continues(
    held: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("prompt_toolkit")
    monkeypatch.setenv("PROMPT_TOOLKIT_NO_CPR", "1")  # It would ask the terminal where it writes.
    (tmp_path / ".monarch").mkdir()
    pids = _held_pids(held)
    with on_terminal(tmp_path, "debug") as first:
        first.until("monarch_dbg>")
        first.press("list\r")
        first.until("{'gpus': 1}")
        first.press("attach stepper 0\r")
        first.until("(Pdb)")
        first.press("p self.los")
        first.until("self.loss")  # Offered as it is typed.
        first.press("\t\r")
        first.until("0.5\n")
        first.press("\x1b[A\r")  # Arrow up
        first.until("0.5\n", times=2)
        first.press("p 12345\x03")
        first.until("leaves the call held")
        assert not _listening([first.process.pid, held.pid, *pids])
        # Killed while it is attached: the call goes on standing, and the next console has it.
        os.kill(first.process.pid, signal.SIGKILL)
        first.end()
    assert "p self.loss" in (tmp_path / ".monarch/debug_history").read_text()
    with on_terminal(tmp_path, "debug", "stepper", "0") as second:
        second.until("(Pdb)")
        second.press("n\r")
        second.until("-> return number")
        second.press("detach\r")
        second.until("Detached from debug session for stepper 0")
        second.press("continue\r")
        assert held.line("answered", 60.0) == "[2, 2]"
        second.press("quit\r")
        assert second.end() == 0
        assert "Quitting debug session" in second.text


@pytest.mark.long
def test_a_variable_set_at_a_terminal_that_completes_stays_set(
    held: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is typed has completions looked up after each key, in the frame's own variables."""
    pytest.importorskip("prompt_toolkit")
    monkeypatch.setenv("PROMPT_TOOLKIT_NO_CPR", "1")
    _held_pids(held)
    with on_terminal(tmp_path, "debug", "stepper", "0") as terminal:
        terminal.until("(Pdb)")
        terminal.press("number = 100\r")
        terminal.until("(Pdb)", times=2)
        terminal.press("p num")
        terminal.until("number")  # Offered as it is typed.
        terminal.press("ber + 900\r")
        terminal.until("1000")
        terminal.press("!number = number + 100\r")
        terminal.press("detach\r")
        terminal.until("Detached from debug session for stepper 0")
        terminal.press("continue\r")
        assert held.line("answered", 60.0) == "[201, 2]"
        terminal.press("quit\r")
        assert terminal.end() == 0


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_is_turned_away_and_a_killed_client_leaves_nothing(
    held: Program, program: Callable[..., Program]
) -> None:
    pids = _held_pids(held)
    sockets = [str(path) for path in Path(runtime_dir()).rglob("*") if path.is_socket()]
    assert sockets
    refused = program(_TRIES, SOCKETS=":".join(sockets))
    assert refused.line("tried", 30.0) == f"{len(sockets)} PermissionError"
    assert all(map(is_running, pids))
    held.process.kill()
    held.process.wait()
    wait_for(lambda: not any(map(is_running, pids)))
    said = _typed("list\nattach stepper 0\n")
    assert "no call is held at this moment" in said
    assert "Error processing command: No debug sessions for actor stepper" in said
