from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import Actor, Channel, Future, endpoint, this_proc
from monarch.config_file import ConfigError
from monarch.runs.recover.ranks import ask_all, check_num_ranks


class Silent:
    """An endpoint whose only rank never answers."""

    def stream(self) -> Iterator[Future[Any]]:
        _, answers = Channel[Any].open()
        return iter([answers.recv()])


class Late(Actor):
    @endpoint
    def give_up(self) -> None:
        raise TimeoutError("no answer from the store")


def test_who_stops_while_there_is_nothing_to_save_need_not_wait() -> None:
    asked: list[bool] = []

    def unless() -> bool:
        asked.append(True)
        return len(asked) == 2

    with pytest.raises(KeyboardInterrupt):
        ask_all(Silent(), seconds=60.0, witnesses=None, doing="setting up", unless=unless)


def test_the_timeout_of_an_endpoint_is_no_hang() -> None:
    late = this_proc().spawn("late", Late)
    with pytest.raises(Exception, match="no answer from the store"):
        ask_all(late.give_up, seconds=60.0, witnesses=None, doing="a step")


def test_ranks_are_shared_evenly_or_refused() -> None:
    assert check_num_ranks(None, 2, 3) == 6
    assert check_num_ranks(4, 2, 3) == 4
    for wanted, told in ((7, "7 ranks, and there are 6 procs"), (3, "which 2 hosts cannot")):
        with pytest.raises(ConfigError, match=told):
            check_num_ranks(wanted, 2, 3)
