import pytest

from monarch.runs.recover.restarts import Restarts


@pytest.mark.long
def test_the_first_restart_is_at_once_and_later_ones_wait_longer() -> None:
    restarts = Restarts(9)
    waits = [restarts.next_wait_seconds(0.0) for _ in range(10)]
    assert waits == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, None]
    assert (restarts.num_counted, restarts.num_in_all) == (9, 9)
    impatient = Restarts(10_000, longest_wait_seconds=1.0)
    assert {impatient.next_wait_seconds(0.0) for _ in range(10_000)} == {0.0, 0.5, 1.0}


def test_progress_fills_the_budget_up() -> None:
    restarts = Restarts(2)
    for now in range(10):
        assert restarts.next_wait_seconds(now) == 0.0
        assert restarts.next_wait_seconds(now) == 0.5
        assert restarts.next_wait_seconds(now) is None
        restarts.progressed()
    assert restarts.num_in_all == 20


def test_what_is_long_past_does_not_count() -> None:
    restarts = Restarts(2, window_seconds=100.0)
    assert [restarts.next_wait_seconds(now) for now in (0.0, 50.0, 99.0)] == [0.0, 0.5, None]
    assert restarts.next_wait_seconds(101.0) == 0.5
    assert restarts.next_wait_seconds(300.0) == 0.0


def test_a_budget_of_none() -> None:
    assert Restarts(0).next_wait_seconds(0.0) is None
