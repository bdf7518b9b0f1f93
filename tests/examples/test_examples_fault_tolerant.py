"""The configs of the fault-tolerant example, and the rounds of tuning that it makes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'monarch-loop[ft]'")

from monarch.config_file import load_config
from monarch_recipes.fault_tolerant import FaultTolerantConfig, check, plan

FOLDER = Path(__file__).parents[2] / "examples/fault_tolerant"


@pytest.mark.parametrize("name", ["calm", "stormy"])
def test_the_configs_can_be_run(name: str) -> None:
    config = load_config(FaultTolerantConfig, FOLDER / f"{name}.toml").config
    check(config, 1, 2)
    rows = plan(config, 1, 2)
    assert rows["group 1"] == "1 proc on host 0"
    assert "idle" not in rows
    assert plan(config, 2, 4)["idle"].startswith("6 procs of no group")
    assert rows["parameters"] == "2,410"
    assert rows["steps"].startswith(f"{config.num_steps}, ")
    assert (rows["faults"] == "none on purpose") == (name == "calm")


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_config_is_edited_synced_and_run_on_hosts_that_stay_up() -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "tune.py")], capture_output=True, text=True, timeout=190
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^round (\d): ", done.stdout, re.MULTILINE) == ["1", "2"]
    found = re.findall(
        r"^learning rate (\S+): (\S+)% in .* 2 groups alike$", done.stdout, re.MULTILINE
    )
    assert [rate for rate, _ in found] == ["2e-2", "5e-3"]
    assert float(found[0][1]) > 80
