from __future__ import annotations

import importlib
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from monarch_reload import Prepared, Reloader, ReloadError, ReloadReport

from .matrix_cases import Case, ask


class Project:
    """A folder of modules on `sys.path`, and a reloader that watches it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reloader = Reloader([root])

    def path(self, name: str) -> Path:
        base = self.root.joinpath(*name.split("."))
        return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")

    def write(self, name: str, source: str) -> Path:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source).lstrip("\n"))
        importlib.invalidate_caches()
        return path

    def load(self, name: str, source: str) -> ModuleType:
        assert name not in sys.modules
        self.write(name, source)
        return importlib.import_module(name)

    def edit(self, name: str, source: str) -> ReloadReport:
        return self.reloader.reload([self.write(name, source)])

    def replace(self, name: str, *pairs: tuple[str, str]) -> ReloadReport:
        text = self.path(name).read_text()
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        return self.edit(name, text)

    def prepare(self, **sources: str | None) -> Prepared:
        """Keyword: module name, with `__` for a dot. Nothing is written to disk."""
        texts = {
            self.path(name.replace("__", ".")): (
                None if source is None else textwrap.dedent(source).lstrip("\n").encode()
            )
            for name, source in sources.items()
        }
        return self.reloader.prepare(texts)


def walk(case: Case, project: Project) -> None:
    """Ask a case's questions, step by step; after a refusal its files are as they were."""
    texts: dict[str, str | None] = {**case.texts("own")}
    for name in sorted(texts, key=lambda name: name.endswith(".__init__"), reverse=True):
        _save(project, name, texts[name])
    space: dict[str, Any] = {}
    ask(case.own(case.before, "own"), space)
    for step in case.steps:
        changed = case.edited(texts, step, "own")
        paths = [_save(project, name, text) for name, text in changed.items()]
        if step.refused:
            with pytest.raises(ReloadError, match=step.refused):
                project.reloader.reload(paths)
            for name in changed:
                _save(project, name, texts.get(name))
        else:
            project.reloader.reload(paths)
            texts.update(changed)
        ask(case.own(step.after, "own"), space)


def _save(project: Project, name: str, text: str | None) -> Path:
    path = project.root.joinpath(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    return path


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    root = tmp_path / "root"
    root.mkdir()
    before = set(sys.modules)
    meta_path = list(sys.meta_path)
    sys.path.insert(0, os.fspath(root))
    made = Project(root)
    yield made
    made.reloader.close()
    assert sys.meta_path == meta_path
    sys.path.remove(os.fspath(root))
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(root)):
            del sys.modules[name]
    sys.path_importer_cache.pop(os.fspath(root), None)
    importlib.invalidate_caches()
