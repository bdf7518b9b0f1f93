"""The runner of suites of others, and how it counts."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[2] / "tools/programs.py"
JUNIT = """<testsuites><testsuite>
<testcase classname="t" name="test_passes" time="1.5"/>
<testcase classname="t" name="test_is_skipped" time="0"><skipped message="no GPU"/></testcase>
<testcase classname="t" name="test_fails" time="0.5"><failure message="assert 1 == 2&#10;more"/>
</testcase>
<testcase classname="t" name="test_fails" time="0"><error message="teardown"/></testcase>
<testcase classname="" name="t" time="0"><error message="collection failure">No module</error>
</testcase>
</testsuite></testsuites>"""


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setitem(sys.modules, "programs_tool", sys)
    return runpy.run_path(str(PATH), run_name="programs_tool")


def test_each_case_counts_once(programs: dict[str, Any]) -> None:
    result = programs["read_junit"]("test_t.py", JUNIT)
    assert result.counts == {"passed": 1, "failed": 1, "error": 1, "skipped": 1}
    assert result.seconds == 2.0
    assert result.failures[0] == ("t::test_fails", "assert 1 == 2")
    text = programs["table"]("monarch", [result])
    assert "| test_t.py | 1 | 1 | 1 | 1 | 2 |" in text
    assert "- test_t.py `test_fails`: assert 1 == 2" in text


def test_an_end_without_counts_has_a_reason(programs: dict[str, Any]) -> None:
    words = programs["ended_words"]
    assert [words(0), words(1), words(2), words(-9)] == [
        "", "", "interrupted", "pytest's exit status -9",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("only", "chosen"),
    [("*", 1), ("titanrl_loop/*", 1), ("test_loop.py", 1), ("titanrl/*", 0), ("test_one.py", 0)],
)
def test_files_are_chosen_by_their_path_or_their_program(
    programs: dict[str, Any], tmp_path: Path, only: str, chosen: int
) -> None:
    (loop,) = (program for program in programs["PROGRAMS"] if program.name == "titanrl_loop")
    found = list(programs["test_files"](tmp_path, loop, only))
    assert found == [PATH.parent / "titanrl/test_loop.py"] * chosen


@pytest.mark.long
def test_a_tree_is_run_file_by_file_from_outside_of_it(
    programs: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tree = tmp_path / "tree"
    (tree / "tests").mkdir(parents=True)
    (tree / "tests/test_one.py").write_text(
        "import os\ndef test_outside():\n    assert not os.path.exists('tests')\n"
    )
    (tree / "tests/test_two.py").write_text("import nothing_of_that_name\n")
    for name in ("MONARCH_TREE", "TORCHFORGE_TREE", "TITAN_TREE", "PROGRAMS_ONLY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCHSTORE_TREE", str(tree))
    monkeypatch.setenv("PROGRAMS_OUT", str(tmp_path / "out"))
    assert programs["main"]() == 1
    table = (tmp_path / "out/table.md").read_text()
    assert "| test_one.py | 1 | 0 | 0 | 0 |" in table
    assert "| test_two.py | 0 | 0 | 1 | 0 |" in table
    assert (tmp_path / "out/torchstore/test_one.xml").exists()
    monkeypatch.delenv("TORCHSTORE_TREE")
    assert programs["main"]() == 2
    assert "MONARCH_TREE" in capsys.readouterr().out
