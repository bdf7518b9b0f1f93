"""What a person sees while a command does something that takes long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.on_terminal import on_terminal

SCRIPT = """
import os, time
from monarch.cli.terminal.phases import phase
def until(name):
    while not os.path.exists(name):
        time.sleep(0.01)
with phase("importing ddp") as now:
    until("go")
    now("bringing your files")
    until("on")
print("done")
"""


@pytest.mark.long_but(1)
@pytest.mark.parametrize("columns", [40, 80])
def test_a_phase_is_told_and_taken_away_again(tmp_path: Path, columns: int) -> None:
    with on_terminal(tmp_path, script=SCRIPT, columns=columns) as shown:
        shown.until("importing ddp 0:00:0")
        (tmp_path / "go").touch()
        shown.until("bringing your files")
        (tmp_path / "on").touch()
        assert shown.end() == 0
        shown.until("done")
        # The line was erased, and the cursor is there again.
        assert "\x1b[2K" in shown.output.partition("done")[0].rpartition("bringing")[2]
        assert shown.output.count("\x1b[?25h") == shown.output.count("\x1b[?25l")
        assert shown.settings == shown.settings_before


def test_where_nobody_looks_on_nothing_is_told(tmp_path: Path) -> None:
    for name in ("go", "on"):
        (tmp_path / name).touch()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("done\n", "")
