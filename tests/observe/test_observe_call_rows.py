"""Rows of calls come into the tables as they were, by whichever way they are loaded."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.core.event_ring import CALL, COLUMNS, FAILURE, SENT, SPAN
from monarch.observe.query import QueryTables, split_rows
from monarch.runtime.observe.drain import pack_lines, pack_rows, row_objects

pytest.importorskip("duckdb")

CALLED = (CALL, 5, "mesh-1", 3, "step", "client", 7, 11, 13, True, 2)
ROWS: list[tuple[Any, ...]] = [
    CALLED,
    (CALL, 6, "mesh-1", 3, "step", "client", 8, 0, 2**62, False, None),
    (SENT, 7, "", 0, "mesh-1", "step", 7, 4, 99, True),
    (SPAN, 8, "mesh-1", 3, "load data, ünder [9]", 21),
    (FAILURE, 9, "trainers 0", 'it said: "no",\nand ended', "uid"),
]
ODD = ['a "quote"', "a \\ stroke", "two\nlines", "null", "", ",", "]", '["call",1]']


def loaded(rows: list[Any], *, as_objects: bool = False) -> list[dict[str, Any]]:
    packed = [pack_lines(row_objects("proc-1", rows))] if as_objects else []
    of_procs = [] if as_objects else [("proc-1", pack_rows(rows))]
    with QueryTables(packed, rows=of_procs) as tables:
        return tables.query("SELECT * FROM rows WHERE k <> 'end' ORDER BY t").rows


def test_calls_are_lines_of_csv_and_all_else_is_left() -> None:
    lines, others = split_rows("proc-1", [list(row) for row in ROWS])
    assert lines[CALL].splitlines()[0] == (
        b'"proc-1","call",5,"mesh-1",3,"step","client",7,11,13,true,2'
    )
    assert [len(lines[kind].splitlines()) for kind in (CALL, SENT, SPAN)] == [2, 1, 1]
    assert others == [list(ROWS[-1])]


def test_both_ways_give_the_same_rows() -> None:
    found = loaded(ROWS)
    assert found == loaded(ROWS, as_objects=True)
    assert [row["k"] for row in found] == [CALL, CALL, SENT, SPAN, FAILURE]
    assert found[0]["p"] == "proc-1"
    assert [found[0][name] for name in COLUMNS[CALL]] == list(CALLED[1:])
    assert found[1]["generation"] is None


@pytest.mark.parametrize("text", ODD)
def test_texts_stay_as_they_are(text: str) -> None:
    rows = [(SPAN, 8, "mesh", 0, text, 21), (SPAN, 9, "mesh", 0, "plain", 22)]
    assert [row["method"] for row in loaded(rows)] == [text, "plain"]


def test_rows_of_another_version_are_loaded_too() -> None:
    rows = [CALLED, (*CALLED, "a column of later")]
    assert [row["port"] for row in loaded(rows)] == [7, 7]
    assert loaded([("a kind of later", 5, "mesh")]) == []
