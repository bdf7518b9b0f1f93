from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from monarch.runs.code import RunCode
from monarch.runs.record import Record
from monarch_sync import Workspace
from tests.privileges import unprivileged


class Shown:
    """A display, as a list."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None: ...


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


def test_what_cannot_be_read_has_not_changed(folder: Path) -> None:
    code = RunCode(Workspace({folder: ""}))
    (folder / "model.py").chmod(0)
    try:
        assert unprivileged(code.look) is None
    finally:
        (folder / "model.py").chmod(0o644)


def test_a_run_tells_in_a_line_of_a_change_of_many_files(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    folder = tmp_path / "run"
    folder.mkdir()
    shown = Shown()
    record = Record(folder, shown)
    record.code = RunCode(Workspace({workspace: ""}))
    record.metrics(1, 9, {"generation": 1.0})
    for name in (*(f"f{number:04d}" for number in range(5000)), "a\nb", "c\udcff"):
        (workspace / name).write_text("x\n")
    record.metrics(2, 9, {"generation": 2.0})
    hour_ago = time.time() - 3600
    (workspace / "late").write_text("x\n")
    os.utime(workspace / "late", (hour_ago, hour_ago))
    record.metrics(3, 9, {"generation": 3.0})
    changes = [line for line in shown.messages if line.startswith("generation ")]
    assert changes[0].startswith(r"generation 2 from step 2: a\nb, c\udcff, f0000 and 4999 more, ")
    assert changes[1] == "generation 3 from step 3: late"
