"""`%load_ext monarch_sync.reload`, with the two calls of IPython that it needs."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from typing import Any

import pytest

from monarch_sync.reload import load_ipython_extension, unload_ipython_extension
from monarch_sync.reload.extension import project_roots

from .conftest import Project


class Shell:
    """Registers callbacks as IPython does, and runs cells."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[..., Any]] = []
        self.events = self

    def register(self, event: str, callback: Callable[..., Any]) -> None:
        assert event == "pre_run_cell"
        self.callbacks.append(callback)

    def unregister(self, event: str, callback: Callable[..., Any]) -> None:
        assert event == "pre_run_cell"
        self.callbacks.remove(callback)

    def run_cell(self) -> None:
        for callback in self.callbacks:
            callback(object())


def test_edited_modules_reload_before_a_cell(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell()
    load_ipython_extension(shell)
    try:
        module = project.load("cell_mod", "def f():\n    return 1\n")
        shell.run_cell()
        assert capsys.readouterr() == ("", "")
        path = project.path("cell_mod")
        stat = path.stat()
        project.write("cell_mod", "def f():\n    return 2\n")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        shell.run_cell()
        assert module.f() == 2
        assert "cell_mod.f" in capsys.readouterr().out
        project.write("cell_mod", "def f(:\n")
        shell.run_cell()
        assert "cell_mod.py:1" in capsys.readouterr().err
        assert module.f() == 2
        shell.run_cell()
        assert capsys.readouterr() == ("", "")
    finally:
        unload_ipython_extension(shell)
    assert shell.callbacks == []


def test_roots_are_neither_installed_nor_standard() -> None:
    roots = project_roots()
    assert sysconfig.get_paths()["stdlib"] not in roots
    assert not [root for root in roots if "site-packages" in root]
    assert set(roots) <= {os.path.realpath(entry) for entry in sys.path}
