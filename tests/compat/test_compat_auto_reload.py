"""Monarch's reloader of one process, at its address."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from monarch._src.actor.code_sync.auto_reload import AutoReloader, SysAuditImportHook

NAME = "auto_reloaded"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(os.fspath(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path / f"{NAME}.py"
    sys.modules.pop(NAME, None)


def _load(file: Path, text: str) -> ModuleType:
    file.write_text(text)
    importlib.invalidate_caches()
    return importlib.import_module(NAME)


def test_what_is_imported_later_is_followed(file: Path) -> None:
    reloader = AutoReloader()
    with SysAuditImportHook.install(reloader.import_callback):
        module = _load(file, "VALUE = 1\n")
        file.write_text("VALUE = 2\n")
        assert reloader.reload_changes() == [NAME]
    assert module.VALUE == 2
    assert reloader.reload_changes() == []


def test_what_was_imported_before_is_followed(file: Path) -> None:
    module = _load(file, "VALUE = 1\n")
    seen: list[str] = []

    def note(changed: ModuleType) -> ModuleType:
        seen.append(changed.__name__)
        return changed

    reloader = AutoReloader(reload=note)
    file.write_text("VALUE = 2\n")
    assert reloader.reload_changes() == seen == [NAME]
    assert module.VALUE == 1


def test_the_standard_library_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    _load(file, "VALUE = 1\n")
    monkeypatch.setattr(sys, "base_prefix", os.fspath(tmp_path))
    reloader = AutoReloader()
    file.write_text("VALUE = 2\n")
    assert reloader.reload_changes() == []


def test_one_that_fails_is_tried_again_and_one_whose_file_is_gone_runs_on(file: Path) -> None:
    module = _load(file, "VALUE = 1\n")
    reloader = AutoReloader()
    file.write_text("VALUE = (\n")
    for _ in range(2):
        with pytest.raises(SyntaxError):
            reloader.reload_changes()
    file.unlink()
    assert reloader.reload_changes() == []
    file.write_text("VALUE = 3\n")
    assert reloader.reload_changes() == [NAME]
    assert module.VALUE == 3


def test_a_hook_that_was_closed_or_raises_disturbs_nobody(file: Path) -> None:
    heard: list[str] = []

    def fail(name: str, module: ModuleType) -> None:
        heard.append(name)
        raise ValueError

    hook = SysAuditImportHook.install(fail)
    assert _load(file, "VALUE = 1\n").VALUE == 1
    assert heard == [NAME]
    hook.close()
    hook.close()
    del sys.modules[NAME]
    _load(file, "VALUE = 1\n")
    assert heard == [NAME]
