"""What a program remembers of the files of its modules, before it has a workspace."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from monarch.runtime.workspace.imported_texts import ImportedTexts
from tests.workspace.conftest import Project


def test_files_are_read_once_after_the_import(project: Project) -> None:
    imported = ImportedTexts()
    imported.look()
    path = project.write("early.py", "X = 1\n")
    project.load("early")
    assert str(path) not in imported.texts()
    imported.look()
    path.write_text("X = 2\n")
    imported.look()
    assert imported.texts()[str(path)] == b"X = 1\n"

    del sys.modules["early"]
    assert str(path) not in imported.texts(), "it is imported no more"
    importlib.invalidate_caches()
    project.load("early")
    imported.look()
    assert imported.texts()[str(path)] == b"X = 2\n"


def test_only_files_of_projects_are_read(project: Project) -> None:
    project.write("lazy.py", "def __getattr__(name):\n    raise RuntimeError(name)\n")
    gone = project.write("gone.py", "")
    project.write("site-packages/installed.py", "")
    sys.path.insert(0, str(project.root / "site-packages"))
    try:
        for name in ("lazy", "gone", "installed"):
            project.load(name)
        gone.unlink()
        imported = ImportedTexts()
        imported.look()
    finally:
        sys.path.remove(str(project.root / "site-packages"))
    found = imported.texts()
    assert found[str(project.root / "lazy.py")].startswith(b"def")
    assert [path for path in found if path.startswith(str(project.root))] == [
        str(project.root / "lazy.py")
    ]
    assert not [
        path for path in found if path.endswith(("/json/__init__.py", "/pytest/__init__.py"))
    ]
    assert importlib.__file__ not in found


def test_what_only_says_that_it_is_a_module_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Claims:  # as what cffi makes of a library: no weak reference is possible
        __slots__ = ()

        @property
        def __class__(self) -> type:  # type: ignore[override]
            return ModuleType

    claims = Claims()
    assert isinstance(claims, ModuleType)
    monkeypatch.setitem(sys.modules, "claims", claims)
    ImportedTexts().look()
