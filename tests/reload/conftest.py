from __future__ import annotations

import importlib
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from monarch_sync.reload import Prepared, Reloader, ReloadReport


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
