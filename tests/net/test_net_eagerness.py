"""Looking for an answer for a moment, before one sleeps until it comes."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from monarch.net import cork
from monarch.net.eagerness import Eagerness
from monarch.net.guest import invite, wait_a_moment
from monarch.net.io_loop import IoLoop
from tests.support import wait_for


@pytest.fixture
def loop() -> Iterator[IoLoop]:
    loop = IoLoop(lends=True)
    loop._eagerness_of_moments = Eagerness(10.0, num_cores=2)
    loop.start()
    invite(loop)
    yield loop
    invite(None)
    loop.stop()


def test_looking_that_is_in_vain_is_tried_more_and_more_rarely() -> None:
    eagerness = Eagerness(0.0, num_cores=2)
    looked = []
    for number in range(5000):
        if eagerness.is_due():
            assert not eagerness.look(lambda: False)
            looked.append(number)
    gaps = [after - before for before, after in itertools.pairwise(looked)]
    assert gaps[:3] == [1, 1, 1]
    assert gaps == sorted(gaps)
    assert len(looked) < 20
    assert gaps[-1] <= 1025, "it is tried again, however often it was in vain"


def test_looking_that_finds_something_goes_on() -> None:
    eagerness = Eagerness(0.0, num_cores=2)
    assert all(eagerness.is_due() and eagerness.look(lambda: True) for _ in range(100))


def test_it_looks_again_until_something_has_come() -> None:
    answers = iter([False, False, True])
    assert Eagerness(60.0, num_cores=2).look(lambda: next(answers))


def test_on_one_core_nobody_looks() -> None:
    assert not Eagerness(num_cores=1).is_due()


def test_who_has_sent_one_message_is_known_once() -> None:
    cork.sent_one()
    cork.sent()
    assert cork.sent_one()
    assert not cork.sent_one()
    cork.sent()
    cork.sent()
    assert not cork.sent_one(), "a burst has no one answer"


def test_a_moment_runs_callbacks_on_the_thread_that_waits(loop: IoLoop) -> None:
    threads: list[int] = []
    read, write = os.pipe()
    try:
        loop.run_on_loop(lambda: loop.add_reader(read, lambda: threads.append(_read(read))))
        cork.sent_one()
        cork.sent()
        os.write(write, b"x")
        wait_a_moment(lambda: bool(threads))
        wait_for(lambda: bool(threads))
    finally:
        loop.run_on_loop(lambda: loop.remove_reader(read), timeout=10)
        os.close(read)
        os.close(write)


def _read(fd: int) -> int:
    os.read(fd, 1)
    return threading.get_ident()


def test_after_a_moment_in_vain_somebody_polls_at_once(loop: IoLoop) -> None:
    loop._eagerness_of_moments = Eagerness(0.0, num_cores=2)
    for _ in range(20):  # also in the waits in which it does not look
        cork.sent_one()
        cork.sent()
        wait_a_moment(lambda: False)
        assert loop.run_on_loop(threading.get_ident, timeout=10) == loop._thread.ident


def test_a_signal_in_a_moment_is_raised_after_the_callback_in_hand(loop: IoLoop) -> None:
    ran: list[int] = []

    def callback() -> None:
        signal.raise_signal(signal.SIGINT)
        ran.append(threading.get_ident())

    def once_we_poll() -> None:
        # Nobody reads what there is: the loop's thread calls this again and again until we poll.
        if threading.get_ident() == threading.main_thread().ident:
            callback()

    read, write = os.pipe()
    try:
        loop.run_on_loop(lambda: loop.add_reader(read, once_we_poll))
        cork.sent_one()
        cork.sent()
        os.write(write, b"x")
        with pytest.raises(KeyboardInterrupt):
            wait_a_moment(lambda: bool(ran))
        assert ran == [threading.main_thread().ident]
    finally:
        loop.run_on_loop(lambda: loop.remove_reader(read), timeout=10)
        os.close(read)
        os.close(write)


def test_a_task_that_asks_again_and_again_leaves_others_their_turn() -> None:
    """Whoever gets its answer within the moment has not been to its loop."""
    from monarch.actor.future import make_future
    from monarch.runtime.promise import Promise

    io = IoLoop(lends=True)
    io._eagerness_of_moments = Eagerness(10.0, num_cores=2)
    io.start()
    invite(io)
    ticks: list[int] = []

    async def ask() -> list[int]:
        for _ in range(50):
            fresh: Promise[int] = Promise()
            asyncio.get_running_loop().call_later(0, ticks.append, 1)
            cork.sent_one()
            cork.sent()
            io.call_soon(lambda fresh=fresh: fresh.set(1))  # type: ignore[misc]
            await make_future(fresh, lambda value: value)
        return ticks

    try:
        assert len(asyncio.run(ask())) >= 45
    finally:
        invite(None)
        io.stop()
