"""The notebooks of examples/notebooks run from top to bottom, in a real kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

BOOKS = sorted((Path(__file__).parents[2] / "examples/notebooks").glob("*.ipynb"))


SAID = {
    "6_surgery_on_a_live_run": [
        "it learns: True",
        "frozen: True",
        "gradients of the ranks differ: True",
        "failed: AttributeError: 'Tensor' object has no attribute 'no_such_thing'",
        "it goes on: True",
    ]
}


def test_there_are_some() -> None:
    assert len(BOOKS) >= 7


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All of them, in one kernel: to start one takes longer than most notebooks."""
    folder = tmp_path_factory.mktemp("notebooks")
    copies = [Path(shutil.copy(book, folder / book.name)) for book in BOOKS]
    env = {**os.environ, "IPYTHONDIR": str(folder / "ipython")}
    run = [sys.executable, str(Path(__file__).with_name("run_notebooks.py")), *map(str, copies)]
    done = subprocess.run(run, env=env, cwd=folder, timeout=240, capture_output=True, text=True)
    return {"stderr": done.stderr, **{one.stem: nbformat.read(one, 4) for one in copies}}


@pytest.mark.long
@pytest.mark.timeout(260)
@pytest.mark.parametrize("book", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(ran: dict[str, Any], book: Path) -> None:
    cells = [cell for cell in ran[book.stem].cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells), ran["stderr"][-3000:]
    for cell in cells:
        for output in cell.outputs:
            assert output.output_type != "error", output
            assert "Warning" not in output.get("text", ""), output
    said = "".join(one.get("text", "") for cell in cells for one in cell.outputs).splitlines()
    assert [line for line in SAID.get(book.stem, []) if line not in said] == []
