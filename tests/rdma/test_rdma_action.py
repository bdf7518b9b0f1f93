"""Which steps may be in one action, and how it is spelled."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.rdma import RDMAAction, RDMABuffer
from monarch.rdma.action import _Claims


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12), st.booleans()), max_size=30))
def test_what_one_step_writes_is_no_other_steps(steps: list[tuple[int, int, bool]]) -> None:
    claims, taken = _Claims(), []
    for start, size, is_written in steps:
        mine = set(range(start, start + size))
        is_free = not any(mine & other for other, written in taken if is_written or written)
        assert claims.add(start, start + size, is_written=is_written) == is_free
        if is_free:
            taken.append((mine, is_written))


def test_what_is_only_read_may_be_written_to_several_buffers() -> None:
    data, one, two = bytearray(b"abcdef"), bytearray(6), bytearray(6)
    action = RDMAAction().write_remote(RDMABuffer(one), data)
    action.write_remote(RDMABuffer(two), memoryview(data)[2:])
    with pytest.raises(ValueError, match="overlaps"):
        action.read_remote(memoryview(data)[:2], RDMABuffer(bytearray(2)))
    action.submit().get()
    assert (one, two) == (b"abcdef", b"cdef\0\0")


def test_older_programs_say_the_buffer_first() -> None:
    there, here, source = bytearray(b"there"), bytearray(5), bytearray(b"local")
    other = bytearray(5)
    action = RDMAAction().read_into(RDMABuffer(there), here)
    assert action.write_from(RDMABuffer(other), source) is action
    action.submit().get()
    assert (here, other) == (b"there", b"local")


def test_an_action_without_steps_is_done() -> None:
    RDMAAction().submit(timeout=1).get()


def test_the_price_of_a_step_does_not_grow_with_their_number() -> None:
    def seconds(number: int) -> float:
        buffer, data = RDMABuffer(bytearray(8)), memoryview(bytearray(8 * number))
        action = RDMAAction()
        started = time.process_time()
        for place in range(number):
            action.read_remote(data[8 * place : 8 * place + 8], buffer)
        return time.process_time() - started

    assert seconds(8000) < 30 * seconds(800) + 0.1
