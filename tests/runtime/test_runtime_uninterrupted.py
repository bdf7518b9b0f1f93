"""Ctrl-C in the middle of a cast: everybody gets the message, or nobody."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from monarch.actor import this_host
from monarch.runtime.links.outbox import Outbox
from monarch.runtime.uninterrupted import Uninterrupted
from tests.actors import Echo

SECONDS = 60.0


@pytest.mark.parametrize("press_at", range(4))
def test_a_cast_that_is_interrupted_reaches_all(
    press_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo: Any = this_host().spawn_procs({"gpus": 3}).spawn("echo", Echo)
    echo.echo.call().get(timeout=SECONDS)
    post = Outbox.post
    num_posted = [0]

    def press_and_post(box: Outbox, *args: Any) -> None:
        if num_posted[0] == press_at:
            signal.raise_signal(signal.SIGINT)
        num_posted[0] += 1
        post(box, *args)
        if num_posted[0] == 3 == press_at:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Outbox, "post", press_and_post)
    with pytest.raises(KeyboardInterrupt):
        echo.append.broadcast("all of you")
    monkeypatch.undo()
    assert echo.read.call().get(timeout=SECONDS).values() == [["all of you"]] * 3


def test_what_the_program_does_about_it_is_done_at_the_end() -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
    try:
        with Uninterrupted():
            with Uninterrupted():
                signal.raise_signal(signal.SIGINT)
            assert not told
        assert told == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_and_those_who_ignore_it_notice_nothing() -> None:
    entered = []

    def enter() -> None:
        with Uninterrupted():
            entered.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [before]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        enter()
    finally:
        signal.signal(signal.SIGINT, before)
    assert entered[1] is signal.SIG_IGN
