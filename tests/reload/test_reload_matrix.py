"""The matrix of questions that a live actor asks of a reload, in one process."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from typing import Any

import pytest

from monarch_reload import ReloadError
from tests.reload.matrix_cases import CASES, Case, ask

from .conftest import Project


@pytest.mark.parametrize("kind", ["narrow", "wide"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_matrix(case: Case, kind: str, project: Project) -> None:
    texts: dict[str, str | None] = {**case.texts(kind)}
    for name, text in case.texts(kind).items():
        project.write(name, text)
    space: dict[str, Any] = {}
    ask(case.own(case.before, kind), space)
    for step in case.steps:
        changed = case.edited(texts, step, kind)
        texts.update(changed)
        stats = {name: project.path(name).stat() for name in changed}
        paths = [project.write(name, text) for name, text in changed.items() if text]
        for name, stat in stats.items() if step.keeps_mtime else ():
            os.utime(project.path(name), ns=(stat.st_atime_ns, stat.st_mtime_ns))
        if step.refused:
            with pytest.raises(ReloadError) as caught:
                project.reloader.reload(paths)
            assert step.refused in str(caught.value)
        else:
            project.reloader.reload(paths)
        ask(case.own(step.after, kind), space)


def test_a_later_process_does_not_run_yesterday_s_bytecode(project: Project) -> None:
    path = project.write("same_mod", "def f():\n    return 1\n")
    # A cached bytecode file of the first version, as a plain import leaves it.
    run = [sys.executable, "-c", "import same_mod; print(same_mod.f())"]
    environment = {**os.environ, "PYTHONPATH": str(project.root), "PYTHONDONTWRITEBYTECODE": ""}
    assert subprocess.run(run, env=environment, capture_output=True).stdout == b"1\n"
    assert list(path.parent.glob("__pycache__/same_mod.*.pyc"))
    stat = path.stat()
    module = importlib.import_module("same_mod")
    path.write_text(path.read_text().replace("return 1", "return 2"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    project.reloader.reload([path])
    assert module.f() == 2
    assert subprocess.run(run, env=environment, capture_output=True).stdout == b"2\n"
