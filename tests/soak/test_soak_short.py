"""A few seconds of `make soak`, so that it is known to run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_short_soak_finds_nothing_wrong() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak.main"],
        env={**os.environ, "SOAK_SECONDS": "8", "SOAK_SEED": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "soak: all well" in done.stdout
    # It has done something.
    assert " 0 messages" not in done.stdout.splitlines()[-4]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("recipe", ["ddp", "titan", "fault_tolerant"])
def test_a_run_survives_a_kill_of_any_process(recipe: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak.kills"],
        env={**os.environ, "KILLS_RECIPE": recipe, "KILLS_COUNT": "3", "KILLS_SEED": "1"},
        capture_output=True,
        text=True,
        timeout=1780,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "of 3 hit, 0 went wrong" in done.stdout
