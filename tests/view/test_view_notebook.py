"""A notebook in a real kernel: what its cells show."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

SETUP = """
import asyncio
import time
from monarch.actor import Actor, current_rank, endpoint, this_host

class Trainer(Actor):
    def __init__(self): self.count = 0
    @endpoint
    def step(self, n): return 10 // n
    @endpoint
    def say(self): print("hello from a rank")
    @endpoint
    def take_a_while(self): time.sleep(1.0)
procs = this_host().spawn_procs({"gpus": 3})
trainers = procs.spawn("trainers", Trainer)
from monarch.runtime.hosts.host_desk import HostDesk
HostDesk.look_seconds = 60.0  # A loaded machine is no silent one.
"""

CELLS = {
    "setup": SETUP,
    "get": "print(sorted(trainers.step.call(5).get().values()))",
    "lines": "trainers.say.call().get(); None",
    "meshes": "display(procs); display(trainers)",
    "view": "shown = procs.view(); shown",
    "viewed": "shown.close(); print(shown.look())",
    "values": "trainers.step.call(5).get()",
    "load": "%load_ext monarch",
    "error": "trainers.step.call(0).get()",
    "whole": "%monarch error",
    "task": """
async def mine():
    await asyncio.sleep(0.2)
task = asyncio.ensure_future(mine())
trainers.take_a_while.call().get()  # An answer that is there already keeps nobody waiting.
await task
""",
    "exec": "%%monarch exec procs\nx = rank // 2\nx",
    "some": "%%monarch exec procs 0-1\nx",
    "bad ranks": "%%monarch exec procs 0-\nx",
    "exec fails": "%%monarch exec procs\nx = 1\n1 // (1 - rank)",
    "query": "%monarch query 'SELECT actor, method FROM calls WHERE NOT ok'",
    "hang": "%monarch hang",
    "unknown": "%monarch nonsense",
    "upgrade": """%%upgrade trainers
class Trainer(Actor):
    def __init__(self): self.count = 0
    @endpoint
    def step(self, n): return 777
    @endpoint
    def say(self): pass
""",
    "upgraded": "print(set(trainers.step.call(5).get().values()))",
    "no mesh": "%%upgrade nobody\nx = 1",
    "command": "%monarch --version",
    "status": "%monarch status",
    "refused": """
from pathlib import Path
from monarch_sync import Workspace
folder = Path("work"); folder.mkdir()
(folder / "mine.py").write_text("def f():\\n    pass\\n")
import sys; sys.path.insert(0, str(folder.resolve()))
import mine
(folder / "mine.py").write_text("def f(:\\n    pass\\n")
await procs.sync_workspace(Workspace(dirs=[folder]))
""",
    "stop": "procs.stop().get()",
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The outputs of each cell."""
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(code.strip()) for code in CELLS.values()]
    folder = tmp_path_factory.mktemp("notebook")
    path = folder / "cells.ipynb"
    nbformat.write(book, path)
    env = {**os.environ, "IPYTHONDIR": str(folder / "ipython")}
    # In a process of its own: what a kernel's client leaves open is not ours to close.
    run = [sys.executable, "-m", "jupyter", "execute", "--inplace", "--allow-errors", str(path)]
    subprocess.run(run, check=True, env=env, cwd=folder, timeout=120, capture_output=True)
    book = nbformat.read(path, as_version=4)
    return {name: cell.outputs for name, cell in zip(CELLS, book.cells, strict=True)}


def text_of(outputs: list[Any], *, stream: str = "") -> str:
    parts = []
    for one in outputs:
        if one.output_type == "stream" and stream in ("", one.name):
            parts.append(one.text)
        elif one.output_type == "error" and not stream:
            parts.append("\n".join(one.traceback))
        elif "data" in one and not stream:
            parts.append(one.data.get("text/html", one.data.get("text/plain", "")))
    return "".join(parts)


@pytest.mark.long
def test_an_answer_is_waited_for_without_a_warning(shown: dict[str, list[Any]]) -> None:
    assert text_of(shown["get"]) == "[2, 2, 2]\n"


@pytest.mark.long
def test_one_that_keeps_a_task_of_the_users_waiting_is_warned_of(
    shown: dict[str, list[Any]],
) -> None:
    assert "active event loop" in text_of(shown["task"])


def test_lines_of_ranks_are_in_the_cell_that_called(shown: dict[str, list[Any]]) -> None:
    assert text_of(shown["lines"]).count("hello from a rank") >= 1


def test_meshes_show_a_square_for_each_rank(shown: dict[str, list[Any]]) -> None:
    assert text_of(shown["meshes"]).count("■") == 6


def test_a_view_of_procs_is_a_widget_of_a_table(shown: dict[str, list[Any]]) -> None:
    pytest.importorskip("anywidget")
    (widget,) = shown["view"]
    assert "application/vnd.jupyter.widget-view+json" in widget.data
    html = text_of(shown["viewed"])
    assert "trainers" in html
    assert "0-2" in html
    assert "idle" in html


def test_equal_values_are_shown_once(shown: dict[str, list[Any]]) -> None:
    html = text_of(shown["values"])
    assert "0-2" in html
    assert html.count("<tr>") == 2


def test_an_error_is_a_dozen_lines_with_the_users_own(shown: dict[str, list[Any]]) -> None:
    text = text_of(shown["error"], stream="stderr")
    assert "ZeroDivisionError" in text
    assert "in step" in text
    assert "    def step(self, n): return 10 // n\n" in text
    assert "/monarch/runtime/" not in text
    assert len(text.splitlines()) <= 12
    assert "Traceback" in text_of(shown["whole"])


def test_a_cell_runs_on_ranks_and_its_answers_are_grouped(shown: dict[str, list[Any]]) -> None:
    text = text_of(shown["exec"])
    assert "[ranks 0-1]\n0" in text
    assert "[rank 2]" in text
    assert "rank 2" not in text_of(shown["some"])
    assert "%%monarch exec" in text_of(shown["bad ranks"], stream="stderr")
    failed = text_of(shown["exec fails"], stream="stderr")
    assert "rank 1: ZeroDivisionError" in failed
    assert "    1 // (1 - rank)\n" in failed
    assert "notebook.py" not in failed


def test_what_runs_here_is_asked_without_an_allocation(shown: dict[str, list[Any]]) -> None:
    pytest.importorskip("duckdb")
    assert text_of(shown["hang"]) == "nobody waits for anybody\n"
    assert "trainers  step" in text_of(shown["query"])


def test_actors_take_the_class_of_a_cell(shown: dict[str, list[Any]]) -> None:
    assert "runs the Trainer of this cell" in text_of(shown["upgrade"])
    assert text_of(shown["upgraded"]) == "{777}\n"
    assert "is no actor mesh" in text_of(shown["no mesh"])


def test_a_refused_push_shows_file_line_and_caret(shown: dict[str, list[Any]]) -> None:
    text = text_of(shown["refused"])
    assert "mine.py:1" in text
    assert "def f(:" in text
    assert "^" in text
    assert "SyncReport(" not in text


def test_commands_answer_in_the_cell(shown: dict[str, list[Any]]) -> None:
    assert "monarch" in text_of(shown["command"]).lower()
    assert text_of(shown["unknown"], stream="stderr").startswith("Usage: monarch ")
