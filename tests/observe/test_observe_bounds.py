"""What looking costs those who do not look; and what is said where an extra is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from monarch.actor import this_host
from tests.cli.on_terminal import on_terminal
from tests.cli.runs_folder import two_runs
from tests.debugger.held_actors import Stepper
from tests.debugger.typist import visit_self
from tests.support import wait_for

_EXTRAS = ("duckdb", "textual", "starlette", "uvicorn", "prompt_toolkit", "debugpy")
_MOST_GROWTH = 3_000_000
_WITHOUT = f"""
import sys
sys.modules.update(dict.fromkeys({_EXTRAS!r}))  # None: Python says that there is no such module
from monarch.cli.main import main
sys.argv = ["monarch", *%r]
main()
"""


@pytest.mark.long
def test_a_proc_does_not_grow_with_its_calls() -> None:
    """Counted from a proc that has done little: the ring becomes full meanwhile, many times."""
    stepper = this_host().spawn_procs({"gpus": 1}, name="counted").spawn("stepper", Stepper)

    def call(num: int) -> None:
        for _ in range(num // 1_000):
            for number in range(999):
                stepper.echo.broadcast(number)
            stepper.echo.call_one(0).get(timeout=60)

    call(1_000)
    (seen,) = [proc for proc in visit_self().procs() if proc.mesh == "counted"]
    proc = psutil.Process(seen.pid)
    # As many as can wait in it have waited, as they do where it gets no processor for a while.
    proc.suspend()
    for number in range(999):
        stepper.echo.broadcast(number)
    proc.resume()
    call(1_000)
    before = proc.memory_info().rss
    call(100_000)
    assert proc.memory_info().rss - before < _MOST_GROWTH


def test_the_runtime_imports_nothing_of_the_extras() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, monarch.actor; print(*sys.modules)"],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "monarch.actor" in done.stdout.split()
    assert set(_EXTRAS).intersection(done.stdout.split()) == set()


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["query", "SELECT 1", "--run", "latest"], "observe"),
        (["top"], "observe"),
        (["dashboard"], "observe"),
        (["debug", "--vscode"], "debug"),
    ],
    ids=["query", "top", "dashboard", "debug"],
)
def test_a_command_without_its_extra_says_in_one_line_what_to_install(
    tmp_path: Path, arguments: list[str], extra: str
) -> None:
    two_runs(tmp_path)
    with on_terminal(tmp_path, columns=200, script=_WITHOUT % (arguments,)) as terminal:
        assert terminal.process.wait(60) == 1
        wait_for(lambda: terminal.text.endswith("\n"))
        shown = terminal.text
    assert "Traceback" not in shown
    # Of a run without telemetry, that is said before.
    assert shown.splitlines()[-1].endswith(f"pip install 'monarch-loop[{extra}]'")
