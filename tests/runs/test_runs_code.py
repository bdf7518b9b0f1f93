from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
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


@pytest.fixture
def code(folder: Path) -> Iterator[RunCode]:
    with closing(RunCode(Workspace({folder: ""}))) as made:
        yield made


def test_a_change_is_told_with_its_diff_and_its_time(folder: Path, code: RunCode) -> None:
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


def test_what_is_no_text_or_gone_is_told_by_name(folder: Path, code: RunCode) -> None:
    (folder / "data.bin").write_bytes(b"\xff\xfe")
    (folder / "model.py").unlink()
    change = code.look()
    assert change is not None
    assert change.files == ["data.bin", "model.py"]
    assert "-    return 1" in change.diff
    assert "data.bin has changed" in change.diff


def test_of_much_text_a_change_is_told_without_a_diff(folder: Path) -> None:
    (folder / "a.py").write_text("x = 1\n" * 10)
    (folder / "b.py").write_text("")
    with closing(RunCode(Workspace({folder: ""}), max_bytes=60)) as code:
        for name in ("a.py", "b.py", "model.py"):
            (folder / name).write_text("y = 2\n")
        change = code.look()
        assert change is not None
        assert change.files == ["a.py", "b.py", "model.py"]
        assert "+y = 2" in change.diff
        assert "model.py has changed" in change.diff
        (folder / "model.py").write_text("z = 3\n")  # now there is room
        change = code.look()
        assert change is not None
        assert "-y = 2\n+z = 3" in change.diff


def test_a_workspace_that_is_gone_changes_nothing(
    folder: Path, tmp_path: Path, code: RunCode
) -> None:
    moved = tmp_path.with_name("moved")
    folder.rename(moved)
    assert code.look() is None
    moved.rename(folder)


def test_what_cannot_be_read_has_not_changed(folder: Path, code: RunCode) -> None:
    (folder / "model.py").chmod(0)
    try:
        assert unprivileged(code.look) is None
    finally:
        (folder / "model.py").chmod(0o644)


def test_a_run_tells_in_a_line_of_a_change_of_many_files(
    folder: Path, code: RunCode, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shown = Shown()
    record = Record(tmp_path_factory.mktemp("run"), shown)
    record.code = code
    record.metrics(1, 9, {"generation": 1.0})
    for name in (*(f"f{number:04d}" for number in range(5000)), "a\nb", "c\udcff"):
        (folder / name).write_text("x\n")
    record.metrics(2, 9, {"generation": 2.0})
    hour_ago = time.time() - 3600
    (folder / "late").write_text("x\n")
    os.utime(folder / "late", (hour_ago, hour_ago))
    record.metrics(3, 9, {"generation": 3.0})
    changes = [line for line in shown.messages if line.startswith("generation ")]
    assert changes[0].startswith(r"generation 2 from step 2: a\nb, c\xff, f0000 and 4,999 more, ")
    assert changes[1] == "generation 3 from step 3: late"
