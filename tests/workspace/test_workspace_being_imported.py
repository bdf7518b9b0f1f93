"""Which modules are in the middle of their import, out of thousands."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from monarch.runtime.workspace.preparing import being_imported

_SECONDS = 60


def test_a_module_is_being_imported_until_its_body_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = ModuleType("gate_of_late_module")
    begun, may_go_on = threading.Event(), threading.Event()
    gate.__dict__.update(begun=begun, may_go_on=may_go_on)
    monkeypatch.setitem(sys.modules, gate.__name__, gate)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "late_module.py").write_text(
        f"from {gate.__name__} import *\nbegun.set()\nassert may_go_on.wait({_SECONDS})\n"
    )
    thread = threading.Thread(target=importlib.import_module, args=["late_module"])
    thread.start()
    try:
        assert begun.wait(_SECONDS)
        assert "late_module" in sys.modules
        found = being_imported()
        assert "late_module" in found
        assert not found & {gate.__name__, __name__, "sys", "importlib"}
    finally:
        may_go_on.set()
        thread.join(_SECONDS)
        monkeypatch.delitem(sys.modules, "late_module")
    assert "late_module" not in being_imported()
