"""Bandwidths and times beside their bounds, measured in the same run: printed, not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
METRICS = {
    "memory": "gpu.read_256_MiB.ratio",
    "weights": "weights.fetch",
    "tensors": "tensors.step_4_x_256",
}


@pytest.mark.parametrize("part", METRICS)
def test_figures_are_measured_and_the_values_are_right(
    part: str, emit: Callable[..., None]
) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), part], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for line in lines:
        emit(**line)
    assert METRICS[part] in {line["metric"] for line in lines}
