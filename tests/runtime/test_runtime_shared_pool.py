from __future__ import annotations

from monarch.net.segment import NUM_HOLDS, PAGE_BYTES
from monarch.runtime.links.shared_pool import Placed, SharedPool

MIB = 2**20


def place(pool: SharedPool, size: int) -> Placed:
    placed = pool.place(size)
    assert placed is not None
    return placed


def clear(placed: Placed, hold: int | None) -> None:
    """What a receiver does when it is done."""
    assert hold is not None
    placed.segment.shared[hold] = 0


def test_a_region_is_used_again_once_nobody_holds_it() -> None:
    pool = SharedPool(8 * MIB, MIB)
    first = place(pool, 100_000)
    offset, segment = first.offset, first.segment
    hold = first.hold("a")
    del first
    assert place(pool, 100_000).offset != offset  # Dropped at once.
    assert pool.num_in_use == 1
    assert hold is not None
    segment.shared[hold] = 0
    assert place(pool, 100_000).offset == offset


def test_while_its_sender_has_it_a_region_is_not_used_again() -> None:
    pool = SharedPool(8 * MIB, MIB)
    first = place(pool, 1000)
    clear(first, first.hold("a"))
    assert place(pool, 1000).offset != first.offset


def test_all_receivers_must_be_done() -> None:
    pool = SharedPool(8 * MIB, MIB)
    first = place(pool, 1000)
    segment = first.segment
    holds = [first.hold(str(i)) for i in range(3)]
    del first
    for hold in holds:
        assert pool.num_in_use == 1
        assert hold is not None
        segment.shared[hold] = 0
    assert pool.num_in_use == 0


def test_what_a_dead_receiver_held_is_taken_back_and_nothing_else() -> None:
    pool = SharedPool(8 * MIB, MIB)
    both, one = place(pool, 1000), place(pool, 1000)
    both.hold("dead")
    both.hold("alive")
    one.hold("dead")
    del both, one
    pool.forget("dead")
    assert pool.num_in_use == 1
    pool.forget("alive")
    assert pool.num_in_use == 0


def test_a_full_pool_has_no_room_until_something_is_given_back() -> None:
    pool = SharedPool(2 * MIB, MIB)
    kept = []
    while (placed := pool.place(300_000)) is not None:
        kept.append(placed)
    assert 4 <= len(kept) <= 2 * MIB // 300_000
    assert len(pool) == 2
    kept.pop(0)
    place(pool, 300_000)


def test_a_message_larger_than_a_segment_gets_one_of_its_own() -> None:
    pool = SharedPool(16 * MIB, MIB)
    assert len(place(pool, 5 * MIB).memory) == 5 * MIB
    assert pool.place(17 * MIB) is None
    assert SharedPool(0).place(1) is None


def test_holds_run_out_before_they_overlap() -> None:
    pool = SharedPool(8 * MIB, MIB)
    placed = place(pool, 1)
    holds = [placed.hold("a") for _ in range(NUM_HOLDS)]
    assert len(set(holds)) == NUM_HOLDS
    assert placed.hold("a") is None
    assert placed.view() is None
    assert placed.offset >= NUM_HOLDS


def test_a_view_of_our_own_is_a_hold_like_any() -> None:
    pool = SharedPool(8 * MIB, MIB)
    placed = place(pool, 3 * PAGE_BYTES)
    placed.memory[:5] = b"hello"
    view = placed.view()
    assert view is not None
    del placed
    assert pool.num_in_use == 1
    assert bytes(view[:5]) == b"hello"
    del view
    assert pool.num_in_use == 0


def test_segments_are_dropped_when_idle_only() -> None:
    pool = SharedPool(8 * MIB, MIB)
    used = place(pool, 900_000)
    spare = place(pool, 900_000)
    number = spare.number
    del spare
    late = 1e12
    assert pool.trim(0.0, 10.0) == []
    assert pool.trim(late, 10.0) == [number]
    assert len(pool) == 1
    del used
    assert len(pool.trim(late, 10.0)) == 1
    place(pool, 1000)
