"""How errors, meshes and environments read in a notebook: pure text, without a kernel."""

from __future__ import annotations

import linecache
from types import SimpleNamespace

from monarch.actor.env_report import EnvReport
from monarch.core.log_bursts import without_actor
from monarch.debugger.holds_table import _function
from monarch.mesh import html
from monarch.view.notebook import with_cells, with_sources

CELL = "/tmp/ipykernel_20094/4278620916.py"


def test_a_cell_has_its_number() -> None:
    names = {CELL: ("Cell", "In[14]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=names.get))
    text = f'  File "{CELL}", line 3, in step\n  File "/home/ann/m.py", line 1, in f'
    assert with_cells(text, shell).splitlines() == [
        "  Cell In[14], line 3, in step",
        '  File "/home/ann/m.py", line 1, in f',
    ]
    assert with_cells(text, SimpleNamespace()) == text, "an IPython that does not number cells"


def test_all_of_an_error_has_the_source_lines_of_cells() -> None:
    linecache.cache[CELL] = 9, None, ["def f():\n", "    1 / 0\n"], CELL
    text = f'  File "{CELL}", line 2, in f\nZeroDivisionError: division by zero'
    assert with_sources(text).splitlines()[1] == "    1 / 0"
    assert with_sources(with_sources(text)) == with_sources(text)
    del linecache.cache[CELL]


def test_the_debugger_calls_a_cell_a_cell() -> None:
    hold = SimpleNamespace(file=CELL, function="Trainer.train_step")
    assert _function(hold) == "cell.train_step"  # type: ignore[arg-type]


def test_variables_that_no_rank_has_are_said() -> None:
    assert str(EnvReport({0: {}}, {})) == "no rank has such a variable"


def test_the_title_of_a_mesh_is_not_broken() -> None:
    assert "white-space:nowrap" in html.grid("ProcMesh('procs', {gpus: 2})", {"vm": {0: "", 1: ""}})


def test_a_line_of_logging_names_its_actor_once() -> None:
    line = "WARNING:root:[actor=<root>.<__main__.Noisy noisy{'gpus': 3/4}>] text"
    assert without_actor(line) == "WARNING:root:text"
