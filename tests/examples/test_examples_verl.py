"""The outline of a backend for verl does what its table in docs/differences.md says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_outline_runs(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples/verl_backend.py")],
        capture_output=True, text=True, cwd=tmp_path, timeout=100,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "generated: [['a!', 'bb!!'], ['ccc!!!']]",
        "updated: [4.0, 7.0]",
        "rank 1 alone: [7.0]",
        "kept: True",
        "not there yet; later: ['thought', 'thought']",
    ]
