"""The reference page of all keys is made from the code, and says what the code says."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools/reference.py"


@pytest.mark.long
@pytest.mark.timeout(260)
def test_the_page_is_up_to_date() -> None:
    for needed in ("torch", "torchft", "torchtitan"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    done = subprocess.run(
        [sys.executable, SCRIPT, "--check"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
