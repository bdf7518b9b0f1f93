from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from monarch.core.regions import Regions

START, END, UNIT = 16, 16 + 40 * 8, 8


@given(orders=st.lists(st.one_of(st.integers(0, 90), st.floats(0, 0.999)), max_size=60))
def test_regions_never_overlap_and_all_of_it_comes_back(orders: list[float]) -> None:
    regions = Regions(START, END, UNIT)
    taken: dict[int, int] = {}
    for order in orders:
        if isinstance(order, int):
            offset = regions.take(order)
            if offset is not None:
                taken[offset] = max(order, 1)
        elif taken:
            offset = sorted(taken)[int(order * len(taken))]
            del taken[offset]
            regions.give_back(offset)
        spans = sorted((offset, offset + size) for offset, size in taken.items())
        assert all(start % UNIT == 0 and START <= start < end <= END for start, end in spans)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert regions.is_unused == (not taken)
    for offset in taken:
        regions.give_back(offset)
    assert regions.take(END - START) == START


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_what_was_given_back_last_in_front_is_used_again_first(sizes: list[int]) -> None:
    regions = Regions(START, END, UNIT)
    first = regions.take(sizes[0])
    assert first == START
    for size in sizes[1:]:
        assert regions.take(size) != START
    regions.give_back(START)
    assert regions.take(sizes[0]) == START


def test_there_is_none_where_no_gap_is_large_enough() -> None:
    regions = Regions(START, END, UNIT)
    offsets = [regions.take(4 * UNIT) for _ in range(10)]
    assert regions.take(1) is None
    for offset in offsets[::2]:
        assert offset is not None
        regions.give_back(offset)
    assert regions.take(5 * UNIT) is None
    assert regions.take(4 * UNIT) == offsets[0]
