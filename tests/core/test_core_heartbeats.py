from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch.core.heartbeats import Heartbeats


def test_a_peer_is_lost_once_when_it_was_silent_for_the_timeout() -> None:
    liveness = Heartbeats(1.0, 10.0)
    liveness.expect("a", 100.0)
    assert liveness.lost(109.9) == []
    assert liveness.lost(110.0) == [("a", 10.0)]
    assert liveness.lost(200.0) == []


def test_whoever_is_heard_of_stays() -> None:
    liveness = Heartbeats(1.0, 10.0)
    liveness.expect("a", 0.0)
    liveness.heard("a", 9.0)
    assert liveness.lost(18.9) == []
    assert liveness.lost(19.5) == [("a", 10.5)]


def test_heartbeats_are_due_at_once_and_then_at_each_interval() -> None:
    liveness = Heartbeats(1.0, 10.0)
    liveness.expect("a", 0.0)
    assert liveness.due(0.0) == ["a"]
    assert liveness.due(0.9) == []
    assert liveness.due(1.0) == ["a"]


def test_strangers_and_forgotten_peers_are_not_watched() -> None:
    liveness = Heartbeats(1.0, 10.0)
    liveness.heard("stranger", 0.0)
    liveness.expect("a", 0.0)
    liveness.forget("a")
    liveness.forget("a")
    assert liveness.due(5.0) == []
    assert liveness.lost(50.0) == []


def test_expecting_a_peer_again_does_not_count_as_hearing_of_it() -> None:
    liveness = Heartbeats(1.0, 10.0)
    liveness.expect("a", 0.0)
    liveness.expect("a", 9.0)
    assert liveness.lost(10.0) == [("a", 10.0)]


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["expect", "heard", "forget", "lost"]),
            st.sampled_from("abc"),
            st.floats(0.0, 4.0),
        ),
        max_size=60,
    )
)
def test_lost_are_exactly_those_silent_for_too_long(steps: list[tuple[str, str, float]]) -> None:
    liveness = Heartbeats(1.0, 10.0)
    last: dict[str, float] = {}
    now = 0.0
    for action, uid, seconds in steps:
        now += seconds
        if action == "expect":
            liveness.expect(uid, now)
            last.setdefault(uid, now)
        elif action == "heard":
            liveness.heard(uid, now)
            if uid in last:
                last[uid] = now
        elif action == "forget":
            liveness.forget(uid)
            last.pop(uid, None)
        else:
            silent = {peer for peer, heard in last.items() if now - heard >= 10.0}
            assert {peer for peer, _ in liveness.lost(now)} == silent
            last = {peer: heard for peer, heard in last.items() if peer not in silent}
