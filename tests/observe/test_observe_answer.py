from __future__ import annotations

import json

from monarch.observe.answer import QueryTable
from monarch.observe.visit import Ping, offset_from


def test_a_table_shows_itself_within_a_width_and_as_data() -> None:
    table = QueryTable(["name", "n"], [("a\nb", 1), ("<c>", None)])
    assert table.in_text(0).splitlines() == ["name  n", "a⏎b   1", "<c>   -"]
    assert max(map(len, table.in_text(6).splitlines())) <= 6
    assert json.loads(table.to_json())[1] == {"name": "<c>", "n": None}
    assert table.to_csv().splitlines()[0] == "name,n"
    assert "&lt;c&gt;" in table._repr_html_()
    assert table[0] == {"name": "a\nb", "n": 1}
    assert len(table[:1]) == 1


def test_a_time_keeps_its_seconds_and_a_small_number_its_figures() -> None:
    table = QueryTable(["at"], [(1795650843.25,), (5.8429e-05,), (0.1234567,)])
    shown = [line.strip() for line in table.in_text(0).splitlines()]
    assert shown == ["at", "1795650843.250", "5.8429e-05", "0.123457"]


def test_rows_beyond_what_fits_are_counted() -> None:
    table = QueryTable(["n"], [(n,) for n in range(100)])
    assert table.in_text().splitlines()[-1] == "... and 40 rows more"


def test_the_ping_with_the_shortest_round_trip_gives_the_offset_and_its_error() -> None:
    found = offset_from([Ping(0, 1_000, 100), Ping(200, 1_205, 210), Ping(300, 1_390, 500)])
    assert found is not None
    assert (found.offset, found.error) == (205 - 1_205, 5)
    assert offset_from([]) is None
