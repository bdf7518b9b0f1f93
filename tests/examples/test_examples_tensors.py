"""The examples about distributed tensors run, and say what they should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

FOLDER = Path(__file__).parents[2] / "examples/tensors"
EXPECTED = {
    "tour": [
        "on rank 3: [[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]",
        "summed: [[6.0, 6.0, 6.0], [6.0, 6.0, 6.0]]",
        "side by side: [2, 3]",
        "moved: [10, 11]",
        "of each: ['I am 0', 'I am 1', 'I am 2', 'I am 3']",
        "failed, as issued in line: broken = divide(y) + 1",
        "and the rest is well: [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]",
    ],
}


def _run(name: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py")], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.long
@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_says_what_it_should(name: str) -> None:
    lines = _run(name)
    assert [line for line in EXPECTED[name] if line not in lines] == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["ddp", "tensor_parallel", "pipeline"])
def test_a_training_learns(name: str) -> None:
    losses = [float(found) for found in re.findall(r"loss ([\d.]+)", "\n".join(_run(name)))]
    assert len(losses) >= 3
    assert losses[-1] < losses[0]
