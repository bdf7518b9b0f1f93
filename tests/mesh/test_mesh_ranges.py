"""Ranks as people write them."""

from __future__ import annotations

from monarch.mesh.ranges import ranges_in_words, ranges_of


def test_ranks_in_a_row_are_a_range_in_whatever_order_they_come() -> None:
    assert ranges_of([]) == []
    assert ranges_of([9, 2, 0, 1, 7, 10, 7]) == ["0-2", "7", "9-10"]
    assert ranges_in_words({0, 1, 2, 7, 9, 10}) == "0-2, 7, 9-10"
