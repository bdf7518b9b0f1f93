"""The notebooks of examples/notebooks run from top to bottom, in a real kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

BOOKS = sorted((Path(__file__).parents[2] / "examples/notebooks").glob("*.ipynb"))


def test_there_are_some() -> None:
    assert len(BOOKS) >= 4


@pytest.mark.parametrize("book", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(book: Path, tmp_path: Path) -> None:
    copy = tmp_path / book.name
    shutil.copy(book, copy)
    env = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")}
    run = [sys.executable, "-m", "jupyter", "execute", "--inplace", str(copy)]
    done = subprocess.run(run, env=env, cwd=tmp_path, timeout=200, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    for cell in nbformat.read(copy, as_version=4).cells:
        for output in cell.get("outputs", []):
            assert "Warning" not in output.get("text", ""), output
