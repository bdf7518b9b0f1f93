"""Each row of the table in docs/security.md names a test that shows it, and that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def rows() -> list[list[str]]:
    """Of the first table: the page's other one has a file of tests for each row."""
    text = (ROOT / "docs" / "security.md").read_text().partition("\n## ")[0]
    table = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_each_row_says_who_what_why_and_by_which_test() -> None:
    assert len(rows()) > 20
    assert all(len(row) == 4 and all(row[1:]) for row in rows())


def test_the_tests_that_the_table_names_exist() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^def (test_\w+)", text, re.MULTILINE))
    named = [re.findall(r"`(test_\w+)`", row[3]) for row in rows()]
    assert all(named)
    assert not {test for tests in named for test in tests} - there
