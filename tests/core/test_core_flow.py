from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.core.flow import Lane, Window

windows = st.builds(Window, st.integers(1, 40), st.integers(1, 1000))
SEND, ANSWER = "send", "answer"
steps = st.lists(st.tuples(st.sampled_from([SEND, SEND, SEND, ANSWER]), st.integers(0, 1500)))


@settings(deadline=None)
@given(windows, steps)
def test_a_full_lane_always_has_a_mark_under_way_and_never_holds_more_than_its_window(
    window: Window, steps: list[tuple[str, int]]
) -> None:
    lane = Lane(window)
    # What the receiver has not taken: sizes, and None for a mark.
    there: deque[int | None] = deque()
    for step, size in steps:
        if step == SEND and lane.has_room:
            before = sum(item for item in there if item is not None)
            assert before < window.num_bytes
            there.append(size)
            if lane.sent(size):
                there.append(None)
        elif step == ANSWER and None in there:
            while there.popleft() is not None:
                pass
            lane.answered()
        messages = [item for item in there if item is not None]
        assert len(messages) <= lane.num_messages <= window.num_messages
        if not lane.has_room:
            assert None in there, "nothing would ever tell that there is room again"


@settings(deadline=None)
@given(windows, st.integers(1, 200))
def test_a_receiver_that_keeps_up_never_stops_its_sender(window: Window, count: int) -> None:
    lane = Lane(window)
    for _ in range(count):
        assert lane.has_room
        if lane.sent(1):
            lane.answered()


def test_a_message_larger_than_the_window_may_leave_alone() -> None:
    lane = Lane(Window(10, 100))
    assert lane.has_room
    assert lane.sent(1000), "and is marked at once"
    assert not lane.has_room
    lane.answered()
    assert lane.has_room
