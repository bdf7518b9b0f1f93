"""The examples of one-sided memory run, and say what their texts promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(path: Path, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(path)], cwd=folder, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_buffers_are_read_while_their_owner_is_busy(tmp_path: Path) -> None:
    printed = run(ROOT / "examples/rdma/buffers.py", tmp_path)
    assert "read what the owner has while it was busy: True" in printed
    assert "counted [0, 1, 2]" in printed
    assert "dropped: it was dropped" in printed


@pytest.mark.long
def test_the_parameter_server_learns(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    printed = run(ROOT / "examples/parameter_server.py", tmp_path)
    assert "learned [1.0, -2.0, 0.5, 3.0]" in printed


@pytest.mark.long
def test_weights_follow_the_trainer(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert "version 3: 3 to 3" in run(ROOT / "examples/rdma/weights.py", tmp_path)


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs/rdma.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "block.py").write_text(block)
    assert run(tmp_path / "block.py", tmp_path) == "bytearray(b'weights') process_vm\n"
