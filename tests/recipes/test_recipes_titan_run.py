"""The command of the README, as a person gives it, to the end."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.huge,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        find_spec("torchtitan") is None,
        reason="torchtitan is not installed: pip install 'monarch-loop[titan]'",
    ),
]


def test_the_small_llama_reaches_a_validation_loss_below_4_5(tmp_path: Path) -> None:
    monarch = [sys.executable, "-c", "from monarch.cli.entry import main; main()"]
    prepare = [*monarch, "recipe", "prepare", "titan-tiny", "."]
    subprocess.run(prepare, cwd=tmp_path, check=True, capture_output=True)
    command = [*monarch, "run", "titan", "--config", "titan.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    [metrics] = tmp_path.glob("runs/titan-*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    losses = [row["validation_loss"] for row in rows if "validation_loss" in row]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 4.5


def test_a_variant_that_is_not_there_is_not_prepared(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from monarch.cli.entry import main; main()"]
    words = ["recipe", "prepare", "titan-small"]
    done = subprocess.run(
        [*command, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "titan has no variant 'small'; there is: titan-tiny" in done.stdout + done.stderr
    assert not list(tmp_path.iterdir())
