from __future__ import annotations

import time
from pathlib import Path

import pytest

from monarch.runs.code import RunCode
from monarch_sync import Workspace


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text("def loss():\n    return 1\n")
    (tmp_path / "data.bin").write_bytes(bytes(range(256)))
    return tmp_path


def test_a_change_is_told_with_its_diff_and_its_time(folder: Path) -> None:
    code = RunCode(Workspace({folder: ""}))
    before = code.digest
    assert code.look() is None
    saved = time.time()
    (folder / "model.py").write_text("def loss():\n    return 2\n")
    (folder / "new.py").write_text("x = 1\n")
    change = code.look()
    assert change is not None
    assert change.files == ["model.py", "new.py"]
    assert "-    return 1\n+    return 2" in change.diff
    assert "+++ b/new.py" in change.diff
    assert abs(change.saved_at - saved) < 60
    assert change.digest == code.digest != before
    assert code.look() is None


def test_what_is_no_text_or_gone_is_told_by_name(folder: Path) -> None:
    code = RunCode(Workspace({folder: ""}))
    (folder / "data.bin").write_bytes(b"\xff\xfe")
    (folder / "model.py").unlink()
    change = code.look()
    assert change is not None
    assert change.files == ["data.bin", "model.py"]
    assert "-    return 1" in change.diff


def test_a_workspace_that_is_gone_changes_nothing(folder: Path, tmp_path: Path) -> None:
    code = RunCode(Workspace({folder: ""}))
    moved = tmp_path.with_name("moved")
    folder.rename(moved)
    assert code.look() is None
    moved.rename(folder)
