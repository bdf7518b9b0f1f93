"""docs/reload_ledger.md: each special case has a file that keeps it and a test that shows it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
LEDGER = ROOT / "docs" / "reload_ledger.md"


class Row(NamedTuple):
    promise: str
    file: str
    test: str


def rows() -> list[Row]:
    lines = [line for line in LEDGER.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return [Row(promise, file.strip("`"), test.strip("`")) for promise, file, test in cells]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.promise)
def test_the_file_and_the_test_of_a_special_case_are_there(row: Row) -> None:
    assert (ROOT / "sync" / "monarch_reload" / row.file).is_file()
    file, test = row.test.split("::")
    tree = ast.parse((ROOT / "tests" / "reload" / file).read_text())
    assert test in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def test_each_promise_is_in_the_ledger_once() -> None:
    promises = [row.promise for row in rows()]
    assert len(promises) > 30
    assert len(set(promises)) == len(promises)


@pytest.mark.parametrize("name", ["outside", "side_effects", "stand_ins", "container_copies"])
def test_files_that_are_nothing_but_special_cases_are_in_the_ledger(name: str) -> None:
    assert f"trial/{name}.py" in [row.file for row in rows()]
