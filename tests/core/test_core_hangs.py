from __future__ import annotations

import pytest

from monarch.core.heartbeats import Hangs


@pytest.fixture
def hangs() -> Hangs:
    return Hangs(10.0)


def test_each_is_asked_again_once_it_has_answered(hangs: Hangs) -> None:
    assert hangs.due(["a", "b"], 0.0) == ["a", "b"]
    assert hangs.due(["a", "b"], 4.0) == []
    assert hangs.answered("a", 5.0) is None
    assert hangs.due(["a", "b"], 6.0) == ["a"]


def test_a_long_silence_is_told_once_and_so_is_its_end(hangs: Hangs) -> None:
    hangs.due(["a", "b"], 0.0)
    hangs.answered("b", 1.0)
    assert hangs.overdue(9.9) == []
    assert hangs.overdue(10.0) == [("a", 10.0)]
    assert hangs.overdue(20.0) == []
    assert hangs.silence("a", 20.0) == 20.0
    assert hangs.silence("b", 20.0) == 0.0
    assert hangs.answered("a", 25.0) == 25.0
    assert hangs.silence("a", 26.0) == 0.0
    hangs.due(["a"], 30.0)
    assert hangs.answered("a", 31.0) is None


def test_a_silence_may_come_again(hangs: Hangs) -> None:
    for start in (0.0, 100.0):
        hangs.due(["a"], start)
        assert hangs.overdue(start + 11.0) == [("a", 11.0)]
        assert hangs.answered("a", start + 12.0) == 12.0


def test_who_is_gone_is_forgotten(hangs: Hangs) -> None:
    hangs.due(["a"], 0.0)
    hangs.forget("a")
    assert hangs.overdue(50.0) == []
    assert hangs.answered("a", 51.0) is None
    hangs.forget("never heard of")
