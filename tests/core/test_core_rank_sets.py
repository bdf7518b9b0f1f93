"""Sets of ranks: upstream's grammar, and what people may write beside it."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.core.rank_sets import (
    BadRanks,
    RanksType,
    coordinates,
    in_ranges,
    is_in,
    parse_ranks,
    parse_set,
    unknown_dims,
)

_END = sys.maxsize


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("123", 123),
        ("12,34,56", [12, 34, 56]),
        (":", range(0, _END)),
        (":7", range(0, 7)),
        ("7:", range(7, _END)),
        ("2:7", range(2, 7)),
        ("::", range(0, _END)),
        ("::3", range(0, _END, 3)),
        (":9:3", range(0, 9, 3)),
        ("1::3", range(1, _END, 3)),
        ("1:9:", range(1, 9)),
        ("1:9:2", range(1, 9, 2)),
        ("host=1", {"host": 1}),
        ("host=1,gpu=:", {"host": 1, "gpu": range(0, _END)}),
        ("host=(1,2),gpu=0:4:2", {"host": [1, 2], "gpu": range(0, 4, 2)}),
        (" host = ( 1 , 2 ) , gpu = 3 ", {"host": [1, 2], "gpu": 3}),
    ],
)
def test_upstreams_grammar(text: str, meant: RanksType) -> None:
    assert parse_ranks(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        "", "-1", "1,", ",1", "1,2,", "1-2", "a", "1:2:3:4", "::0", "(1,2)", "1.5", "host",
        "host=", "host=(1)", "host=(1,2,)", "host=1,2", "host=-1", "host=1,", "=1", "1host=2",
        "host=1 gpu=2", "host=(1,2", "host=((1,2))", "host=1:2:3:4", "1 2", "all",
    ],
)  # fmt: skip
def test_what_upstream_refuses(text: str) -> None:
    with pytest.raises(BadRanks):
        parse_ranks(text)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("3", [3]),
        ("0-3,7", [0, 1, 2, 3, 7]),
        ("::2", [0, 2, 4, 6]),
        ("all", [*range(8)]),
        ("ranks(1,2)", [1, 2]),
        ("host=1", [4, 5, 6, 7]),
        ("host=1,gpu=0-1,3", [4, 5, 7]),
        ("ranks(host=0,gpu=(1,2))", [1, 2]),
    ],
)
def test_what_people_write(text: str, ranks: list[int]) -> None:
    meant = parse_set(text)
    assert [rank for rank in range(8) if is_in(meant, rank, ("host", "gpu"), (2, 4))] == ranks


@pytest.mark.parametrize("text", ["", "3-1", "x", "host=", "0-", "1--2", "ranks(1,)", "0-99999999"])
def test_what_nobody_can_mean(text: str) -> None:
    with pytest.raises(BadRanks):
        parse_set(text)


@given(st.sets(st.integers(0, 200), min_size=1))
def test_ranges_are_read_as_they_were_written(ranks: set[int]) -> None:
    meant = parse_set(in_ranges(ranks))
    assert {rank for rank in range(201) if is_in(meant, rank)} == ranks


def test_a_rank_has_its_place_and_a_dimension_may_be_missing() -> None:
    assert coordinates(5, ("host", "gpu"), (2, 4)) == {"host": 1, "gpu": 1}
    assert unknown_dims(parse_set("rack=1"), {"host": 2}) == ["rack"]
    assert not is_in(parse_set("rack=1"), 0, ("host",), (2,))
