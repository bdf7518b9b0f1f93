"""Upstream's GRPO example that needs no GPU, unchanged, from the checkout `MONARCH_TREE`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = "docs/source/examples/grpo_yield.py"


@pytest.mark.slow
@pytest.mark.skipif("MONARCH_TREE" not in os.environ, reason="MONARCH_TREE names no checkout")
def test_it_trains_to_its_end(tmp_path: Path) -> None:
    example = Path(os.environ["MONARCH_TREE"]).absolute() / EXAMPLE
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr[-3000:]
    steps = [line for line in done.stdout.splitlines() if "[trainer] step" in line]
    assert len(steps) >= 20, done.stdout[-3000:]
    assert "training complete" in done.stdout
