"""A slow reader misses lines from the middle; it is told how many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.core.log_backlog import Backlog

OPERATIONS = st.lists(st.one_of(st.none(), st.integers(1, 30)), max_size=40)


@given(OPERATIONS, st.integers(20, 100))
def test_every_line_is_taken_or_counted_and_the_last_is_taken(
    operations: list[int | None], max_bytes: int
) -> None:
    backlog = Backlog(max_bytes)
    num_put = 0
    seen: list[int] = []
    num_missing = 0

    def take() -> None:
        nonlocal num_missing
        block = backlog.take()
        numbers = [int(line) for line in block.lines.split()]
        num_missing += block.num_dropped
        # What is missing lies just before the block.
        assert numbers[0] == len(seen) + num_missing
        seen.extend(numbers)

    for count in operations:
        if count is None:
            if backlog:
                take()
            continue
        backlog.put(1, b"".join(b"%04d\n" % (num_put + i) for i in range(count)))
        num_put += count
        assert backlog.num_bytes <= max(max_bytes, 5)
    while backlog:
        take()
    assert len(seen) + num_missing == num_put
    assert not num_put or seen[-1] == num_put - 1


def test_streams_stay_in_order() -> None:
    backlog = Backlog(100)
    backlog.put(1, b"a\n")
    backlog.put(2, b"b\n")
    assert [backlog.take()[:2] for _ in range(2)] == [(1, b"a\n"), (2, b"b\n")]
    with pytest.raises(IndexError):
        backlog.take()


def test_one_line_longer_than_all_room_is_kept() -> None:
    backlog = Backlog(10)
    backlog.put(1, b"before\n")
    backlog.put(1, b"x" * 50 + b"\n")
    block = backlog.take()
    assert (len(block.lines), block.num_dropped) == (51, 1)
