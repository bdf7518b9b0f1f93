"""`%load_ext monarch_reload`, with the calls of IPython that it needs, and with IPython."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch_reload import load_ipython_extension, unload_ipython_extension
from monarch_reload.ipython import project_roots

from .conftest import Project


class Shell:
    """Registers callbacks and magics as IPython does, and runs cells."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[..., Any]] = []
        self.after: list[Callable[..., Any]] = []
        self.magics: dict[str, dict[str, Callable[[str], None]]] = {"line": {}}
        self.events = self
        self.magics_manager = self

    def register(self, event: str, callback: Callable[..., Any]) -> None:
        {"pre_run_cell": self.callbacks, "post_run_cell": self.after}[event].append(callback)

    def unregister(self, event: str, callback: Callable[..., Any]) -> None:
        {"pre_run_cell": self.callbacks, "post_run_cell": self.after}[event].remove(callback)

    def register_magic_function(self, func: Any, magic_kind: str, magic_name: str) -> None:
        self.magics[magic_kind][magic_name] = func

    def run_cell(self, do: Callable[[], Any] = lambda: None) -> Any:
        for callback in self.callbacks:
            callback(object())
        result = do()
        for callback in self.after:
            callback(object())
        return result

    def magic(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        self.magics["line"][name](rest)


@pytest.fixture
def shell(project: Project) -> Iterator[Shell]:
    made = Shell()
    load_ipython_extension(made)
    yield made
    unload_ipython_extension(made)
    assert (made.callbacks, made.after, made.magics) == ([], [], {"line": {}})


def test_a_folder_that_a_cell_puts_on_the_path(
    project: Project,
    shell: Shell,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path_factory.mktemp("later")
    (folder / "on_a_later_path.py").write_text("A = 1\n")

    def cell() -> Any:
        monkeypatch.syspath_prepend(folder)
        return importlib.import_module("on_a_later_path")

    module = shell.run_cell(cell)
    (folder / "on_a_later_path.py").write_text("A = 2\n")
    assert shell.run_cell(lambda: module.A) == 2
    del sys.modules["on_a_later_path"]


@pytest.mark.long
def test_edited_modules_reload_before_a_cell(
    project: Project, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    module = project.load("cell_mod", "def f():\n    return 1\n")
    shell.run_cell()
    assert capsys.readouterr() == ("", "")
    path = project.path("cell_mod")
    stat = path.stat()
    project.write("cell_mod", "def f():\n    return 2\n")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    shell.run_cell()
    assert module.f() == 2
    first, head, row = capsys.readouterr().out.splitlines()
    assert first.startswith("reloaded 1 module in ")
    assert (head.split(), row.split()) == (
        ["module", "verdict", "what"],
        ["cell_mod", "patch", "f"],
    )
    project.write("cell_mod", "def f(:\n")
    shell.run_cell()
    assert "cell_mod.py:1" in capsys.readouterr().err
    assert module.f() == 2
    shell.run_cell()
    assert capsys.readouterr() == ("", "")
    shell.magic("monarch_reload now")
    assert "cell_mod.py:1" in capsys.readouterr().err


@pytest.mark.long
def test_what_still_runs_old_code_is_told_before_the_cell(
    project: Project, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "def make():\n    k = 1\n    def inner(x): return x\n    return inner\n"
    text += "def numbers():\n    yield 1\n    yield 2\n"
    module = project.load("cell_mod", text)
    held, numbers = module.make(), module.numbers()
    next(numbers)
    text = text.replace("return x", "return x + k").replace("yield 2", "yield 3")
    project.write("cell_mod", text)
    shell.run_cell()
    out, err = capsys.readouterr()
    assert "old code: 1 live closure of `cell_mod.make` runs the code of an earlier version" in err
    assert "restart the kernel" in err
    assert "kept: `cell_mod.numbers` is still running code" in out
    del held, numbers
    project.write("cell_mod", text.replace("k = 1", "k = 2"))
    shell.run_cell()
    out, err = capsys.readouterr()
    assert (err, "kept" in out) == ("", False)


@pytest.mark.long
def test_what_needs_a_new_kernel_is_said_and_nothing_changes(
    project: Project, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "class A:\n    __slots__ = ('x',)\ndef f():\n    return 1\n"
    module = project.load("cell_mod", source)
    project.write("cell_mod", source.replace("'x',", "'x', 'y'").replace("1", "2"))
    shell.run_cell()
    said = capsys.readouterr().err
    assert "cell_mod cannot be patched in place: A: __slots__ changed" in said
    assert said.endswith("Nothing changed.\nRestart the kernel to run it.\n")
    assert module.f() == 1


@pytest.mark.long
def test_magic_turns_it_off_and_on(
    project: Project, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    module = project.load("cell_mod", "def f():\n    return 1\n")
    shell.magic("monarch_reload off")
    shell.magic("monarch_reload")
    project.write("cell_mod", "def f():\n    return 2\n")
    shell.run_cell()
    assert capsys.readouterr().out == "reload before each cell: off\n" * 2
    assert module.f() == 1
    shell.magic("monarch_reload now")
    assert module.f() == 2
    shell.magic("monarch_reload on")
    project.write("cell_mod", "def f():\n    return 3\n")
    shell.run_cell()
    assert module.f() == 3
    shell.magic("monarch_reload perhaps")
    assert "not 'perhaps'" in capsys.readouterr().err


@pytest.mark.long
def test_in_ipython(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("IPython")
    monkeypatch.setenv("IPYTHONDIR", str(project.root.parent))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # IPython's own
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}))
        shell.run_cell("%load_ext monarch_reload")
        try:
            project.write("cell_mod", "def f():\n    return 1\n")
            shell.run_cell("import cell_mod")
            project.write("cell_mod", "def f():\n    return 2\n")
            shell.run_cell("got = cell_mod.f()")
            assert shell.user_ns["got"] == 2
            assert "reloaded 1 module" in capsys.readouterr().out
            shell.run_cell("%monarch_reload off")
            assert "off" in capsys.readouterr().out
        finally:
            shell.run_cell("%unload_ext monarch_reload")


def test_roots_are_neither_installed_nor_standard() -> None:
    roots = project_roots()
    assert sysconfig.get_paths()["stdlib"] not in roots
    assert not [root for root in roots if "site-packages" in root]
    assert set(roots) <= {os.path.realpath(entry) for entry in sys.path}
