"""Edits as people make them in the middle of a run, in one process."""

from __future__ import annotations

import gc
import importlib.util
import logging
import signal
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from monarch_reload import NeedsRespawn, ReloadError

from . import (
    edits_of_classes_in_native_code,
    edits_of_closures,
    edits_of_definitions,
    edits_of_files,
    edits_of_habits,
    edits_of_imports,
    edits_of_torch_code,
    edits_of_values,
    edits_that_trip,
)
from .conftest import Project
from .matrix_cases import Case, ask


@pytest.mark.parametrize(
    "case",
    [
        *edits_of_classes_in_native_code.CASES,
        *edits_of_closures.CASES,
        *edits_of_files.CASES,
        *edits_of_definitions.CASES,
        *edits_that_trip.CASES,
        *edits_of_habits.CASES,
        *edits_of_imports.CASES,
        *edits_of_values.CASES,
    ],
    ids=lambda case: case.name,
)
def test_edits(case: Case, project: Project) -> None:
    _walk_through(case, project)


@pytest.mark.long_but(1)
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="no torch")
@pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated, and in use
@pytest.mark.parametrize("case", edits_of_torch_code.CASES, ids=lambda case: case.name)
def test_edits_of_torch_code(case: Case, project: Project) -> None:
    _walk_through(case, project)


def _walk_through(case: Case, project: Project) -> None:
    texts: dict[str, str | None] = {**case.texts("own")}
    for name, text in texts.items():
        _write(project, name, text)
    space: dict[str, Any] = {}
    ask(case.own(case.before, "own"), space)
    for step in case.steps:
        changed = case.edited(texts, step, "own")
        texts.update(changed)
        for name, text in changed.items():
            _write(project, name, text)
        if step.refused:
            with pytest.raises(ReloadError) as caught:
                project.reloader.reload()
            assert step.refused in f"{type(caught.value).__name__}: {caught.value}"
        else:
            project.reloader.reload()
        ask(case.own(step.after, "own"), space)


def _write(project: Project, name: str, text: str | None) -> None:
    path = project.root.joinpath(*name.split(".")).with_suffix(".py")
    if text is None:
        path.unlink()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    importlib.invalidate_caches()


LOUD = """
import logging, signal
logger = logging.getLogger("edits_of_reload")
handler = logging.NullHandler()
logger.addHandler(handler)
def stop(*args): return 1
signal.signal(signal.SIGUSR2, stop)
"""


def test_handlers_of_logs_and_signals(project: Project) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    module = project.load("loud_mod", LOUD)
    handler, stop, logger = module.handler, module.stop, module.logger
    other = logging.getLogger("edits_of_reload.other")
    edits = [
        ("NullHandler()", "NullHandler(5)"),
        ("def stop(*args): return 1", "def halt(*args): return 2\ndef stop(*args, n=2): return 1"),
        ("SIGUSR2, stop)", "SIGUSR2, halt)\nlogger.getChild('other').addHandler(handler)"),
    ]
    try:
        with pytest.raises(ReloadError, match="ZeroDivisionError"):
            project.replace("loud_mod", *edits, ("halt)\n", "halt)\nx = 1 / 0\n"))
        assert (logger.handlers, other.handlers) == ([handler], [])
        assert signal.getsignal(signal.SIGUSR2) is stop
        report = project.replace("loud_mod", ("x = 1 / 0\n", ""))
        assert module.handler.level == 5
        # In the place of the old one, not beside it.
        assert logger.handlers == other.handlers == [module.handler]
        assert signal.getsignal(signal.SIGUSR2) is module.halt
        report.undo()
        assert (logger.handlers, other.handlers) == ([handler], [])
        assert signal.getsignal(signal.SIGUSR2) is stop
    finally:
        signal.signal(signal.SIGUSR2, before)
        logger.removeHandler(handler)


def test_moved_definitions_are_taken_back(project: Project) -> None:
    source = "class A:\n    def f(self): return HERE\ndef g(): return HERE\n"
    gone = source.replace("def g", "    def gone(self): pass\ndef g")
    module = project.load("home_mod", f"HERE = 1\n{gone}")
    user = project.load("user_mod", "from home_mod import A, g\n")
    a, g = module.A(), module.g
    moved = project.write("new_home", f"HERE = 2\n{source}")
    paths = [moved, project.write("home_mod", "HERE = 1\n")]
    report = project.reloader.reload(
        [*paths, project.write("user_mod", "from new_home import A, g\n")]
    )
    assert (a.f(), g(), user.g is g, user.A is type(a)) == (2, 2, True, True)
    assert (g.__module__, type(a).__module__) == ("new_home", "new_home")
    assert "new_home.A" in report.classes
    assert not hasattr(a, "gone")
    report.undo()
    assert (a.f(), g(), module.g is g, module.A is type(a)) == (1, 1, True, True)
    assert a.gone() is None
    assert (g.__module__, g.__globals__ is vars(module)) == ("home_mod", True)
    assert "new_home" not in sys.modules


@pytest.mark.long
def test_thirty_edits_leave_nothing_behind(project: Project) -> None:
    source = (
        "N = {0}\nclass A:\n    k = {0}\n    def f(self): return N\n"
        "class B(A):\n    def f(self): return ({0}, super().f())[1]\n"
        "def g(x={0}, by=lambda v: v + {0}): return A().f()\nKEPT = [1]\n"
    )
    module = project.load("often_mod", source.format(0))
    b, kept, seen = module.B(), module.KEPT, []
    for number in range(1, 31):
        project.edit("often_mod", source.format(number))
        assert (b.f(), b.k, module.g(), module.KEPT is kept) == (number, number, number, True)
        if number % 10 == 0:
            gc.collect()
            objects = gc.get_objects()
            kinds = [sum(issubclass(type(thing), kind) for thing in objects) for kind in KINDS]
            seen.append([*kinds, len(objects) // 300])
    assert seen[1][:2] == seen[2][:2]
    assert seen[2][2] - seen[1][2] <= 1
    assert module.A.__subclasses__() == [module.B]


KINDS = (ModuleType, type)


def test_a_push_may_bring_what_its_code_imports(project: Project) -> None:
    """Files that are not there yet: a process that holds a replica prepares before they are."""
    module = project.load("near_mod", "def f(): return 1\n")
    elsewhere = project.root.parent / "staged"
    elsewhere.write_text("def far(): return 2\n")
    path = project.root / "far_folder" / "far_mod.py"
    text = b"from far_folder.far_mod import far\ndef f(): return far()\n"
    prepared = project.reloader.prepare(
        {project.path("near_mod"): text}, arriving={str(path): str(elsewhere)}
    )
    assert module.f() == 1
    prepared.abort()
    assert "far_folder.far_mod" not in sys.modules
    with pytest.raises(ReloadError, match="far_folder"):
        project.reloader.prepare({project.path("near_mod"): text})
    prepared = project.reloader.prepare(
        {project.path("near_mod"): text}, arriving={str(path): str(elsewhere)}
    )
    prepared.commit()
    assert module.f() == 2
    assert sys.modules["far_folder.far_mod"].__file__ == str(path)


def test_an_operator_of_torch_is_refused_by_name(project: Project) -> None:
    pytest.importorskip("torch")
    project.load(
        "operator_mod",
        "import torch\n@torch.library.custom_op('edits_of_reload::twice', mutates_args=())\n"
        "def twice(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\n",
    )
    with pytest.raises(NeedsRespawn, match="twice: an operator of torch"):
        project.replace("operator_mod", ("x: torch.Tensor)", "x: torch.Tensor, n: int = 2)"))


PROGRAM = """
import sys
from pathlib import Path
from monarch_reload import Reloader
import part_mod
from part_mod import STEP
MADE = []
def make(): return STEP
DOUBLE = STEP * 2
try:
    MADE.append(part_mod.Part())
    for _ in range(1):
        reloader = Reloader([Path(__file__).parent])
        Path(part_mod.__file__).write_text("STEP = 5\\nclass Part:\\n    size = 9\\n")
        reloader.reload()
finally:
    print(len(MADE), MADE[0].size, STEP, make(), DOUBLE)
MADE.append(part_mod.Part())
"""


def test_a_script_without_a_main_guard_is_not_run_again(project: Project) -> None:
    project.write("part_mod", "STEP = 1\nclass Part:\n    size = 1\n")
    script = project.write("script_mod", PROGRAM)
    result = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("1 9 5 5 10\n", "")
