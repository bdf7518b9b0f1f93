from __future__ import annotations

import itertools

from monarch.core.event_ring import (
    CALL,
    COLUMNS,
    SENT,
    STATUS,
    CallsInHand,
    EventRing,
    sent_call_ends,
)


def ring(size: int = 4) -> EventRing:
    ticks = itertools.count(100, 10)
    return EventRing(size, lambda: next(ticks))


def test_a_call_is_one_row_at_its_end_with_its_wait_and_its_run() -> None:
    events = ring()
    calls = CallsInHand(events, "mesh", 3)
    calls.begins(1, "step", "client", 7, 95)
    assert [(one.method, one.since, one.wait) for one in calls.all()] == [("step", 100, 5)]
    assert not events.rows()
    calls.ends(1, 2, is_ok=True)
    (row,) = events.rows()
    assert dict(zip(COLUMNS[CALL], row[1:], strict=True)) == {
        "t": 110, "mesh": "mesh", "rank": 3, "method": "step", "sender": "client", "port": 7,
        "wait": 5, "run": 10, "ok": True, "generation": 2,
    }  # fmt: skip
    assert calls.all() == []
    assert (calls.num_ended, calls.num_failed) == (1, 0)


def test_a_call_that_ended_already_adds_nothing() -> None:
    events = ring()
    calls = CallsInHand(events, "mesh", 0)
    calls.begins(1, "step", "client", 7, 0)
    calls.ends(1, 0, is_ok=False)
    calls.ends(1, 0, is_ok=True)
    assert len(events) == 1
    assert calls.num_failed == 1


def test_without_a_ring_nothing_is_kept() -> None:
    calls = CallsInHand(None, "mesh", 0)
    calls.begins(1, "step", "client", 7, 0)
    assert calls.all() == []
    calls.ends(1, 0, is_ok=True)
    assert calls.num_ended == 0


def test_old_calls_give_way_and_lives_stay() -> None:
    events = ring(size=2)
    events.note(STATUS, "mesh", 0, "failed", "why")
    for number in range(5):
        sent_call_ends((events, 0, "", 0, "mesh", "step", number, 1), is_ok=True)
    kinds = [row[0] for row in events.rows()]
    assert kinds == [STATUS, SENT, SENT]
    assert [row[6] for row in events.rows()[1:]] == [3, 4]


def test_what_is_taken_is_gone() -> None:
    events = ring()
    events.note(STATUS, "mesh", 0, "idle", "")
    assert len(events.take()) == 1
    assert events.take() == []
    assert len(events) == 0
