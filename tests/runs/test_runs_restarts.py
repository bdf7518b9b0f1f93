from monarch.runs.restarts import Restarts


def test_the_first_restart_is_at_once_and_later_ones_wait_longer() -> None:
    restarts = Restarts(8)
    waits = [restarts.next_wait_seconds() for _ in range(9)]
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, None]
    assert (restarts.num_in_a_row, restarts.num_in_all) == (8, 8)


def test_progress_fills_the_budget_up() -> None:
    restarts = Restarts(2)
    for _ in range(10):
        assert restarts.next_wait_seconds() == 0.0
        assert restarts.next_wait_seconds() == 1.0
        assert restarts.next_wait_seconds() is None
        restarts.progressed()
    assert restarts.num_in_all == 20


def test_a_budget_of_none() -> None:
    assert Restarts(0).next_wait_seconds() is None
