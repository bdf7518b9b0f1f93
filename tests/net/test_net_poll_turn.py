"""An I/O loop that lends its turn: somebody always polls, and only one at a time."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest

from monarch.net.guest import invite
from monarch.net.io_loop import IoLoop
from monarch.net.lent_selector import LentSelector
from monarch.net.poll_turn import PollTurn, has_alarms
from monarch.runtime.promise import Promise
from tests.support import wait_for


@pytest.fixture
def loop() -> Iterator[IoLoop]:
    loop = IoLoop(lends=True)
    loop.start()
    yield loop
    loop.stop()


class Guest:
    """A thread that polls until it is told to go, as often as it is told to come."""

    def __init__(self, loop: IoLoop) -> None:
        self.loop = loop
        self.is_done = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.is_done:
            self.loop.serve(lambda: self.is_done)

    def polls(self) -> bool:
        return self.thread_of_the_loop() == self.thread.ident

    def thread_of_the_loop(self) -> int:
        seen: list[int] = []
        self.loop.run_on_loop(lambda: seen.append(threading.get_ident()), timeout=10)
        return seen[0]

    def leave(self) -> None:
        self.is_done = True
        self.loop.call_soon(lambda: None)
        self.thread.join(10)
        assert not self.thread.is_alive()


def test_a_guest_polls_and_the_own_thread_goes_on_after_it(loop: IoLoop) -> None:
    guest = Guest(loop)
    wait_for(guest.polls)
    guest.leave()
    assert guest.thread_of_the_loop() == loop._thread.ident


@pytest.mark.skipif(not has_alarms(), reason="the turn is lent on Linux only")
@pytest.mark.parametrize("is_let_in", [True, False])
def test_a_wish_for_the_turn_is_over_with_its_guest(is_let_in: bool) -> None:
    """A later lending would be in vain: nobody polls until its alarm goes off."""
    turn = PollTurn(lends=True)
    turn.begin()

    def own_thread_lets_go_for_a_look() -> bool:
        assert turn.is_wanted
        if is_let_in:
            turn._turn.release()
        return is_let_in

    has_turn = turn.take(own_thread_lets_go_for_a_look)
    assert turn._alarm is not None
    turn._alarm.close()
    assert has_turn == is_let_in
    assert not turn.is_wanted


def test_a_guest_that_is_away_stops_nobody(loop: IoLoop) -> None:
    comes = threading.Event()

    def serve_once() -> None:
        loop.serve(lambda: comes.is_set())

    threading.Thread(target=serve_once, daemon=True).start()
    wait_for(lambda: loop._turn.holder not in (0, loop._thread.ident))
    loop.call_soon(comes.set)
    # It goes off with its message; what comes then is read without it.
    wait_for(
        lambda: loop.run_on_loop(threading.get_ident, timeout=10) == loop._thread.ident,
        what="the loop's own thread",
    )


def test_only_one_guest_at_a_time_and_the_next_one_gets_its_turn(loop: IoLoop) -> None:
    first = Guest(loop)
    wait_for(first.polls)
    tried = threading.Event()
    began = threading.Thread(target=lambda: (loop.serve(lambda: False), tried.set()))
    began.start()
    assert tried.wait(10), "a second guest must not wait for the first"
    began.join(10)
    first.leave()
    second = Guest(loop)
    wait_for(second.polls)
    second.leave()


def test_callbacks_never_run_on_two_threads_at_once(loop: IoLoop) -> None:
    inside = [0]
    most = [0]
    ran = [0]

    def callback() -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        os.sched_yield()
        inside[0] -= 1
        ran[0] += 1

    def come_and_go() -> None:
        for _ in range(50):
            enough = ran[0] + 3
            loop.serve(lambda enough=enough: ran[0] > enough, timeout=0.01)  # type: ignore[misc]

    guests = [threading.Thread(target=come_and_go) for _ in range(3)]
    for guest in guests:
        guest.start()
    for _ in range(3000):
        loop.call_soon(callback)
    for guest in guests:
        guest.join(30)
    wait_for(lambda: ran[0] == 3000)
    assert most[0] == 1


def test_a_guest_hears_of_what_another_thread_has_done(loop: IoLoop) -> None:
    promise: Promise[int] = Promise()

    def wait() -> None:
        invite(loop)
        promise.wait()

    guest = threading.Thread(target=wait)
    guest.start()
    wait_for(lambda: loop._turn.holder == guest.ident)
    promise.set(1)
    guest.join(20)
    assert not guest.is_alive()


def test_serving_ends_in_time(loop: IoLoop) -> None:
    loop.serve(lambda: False, timeout=0.01)
    assert loop.run_on_loop(lambda: 7, timeout=10) == 7


def test_a_loop_that_does_not_lend_says_so_at_once() -> None:
    loop = IoLoop()
    loop.start()
    loop.serve(lambda: False)
    loop.stop()


def test_the_loop_stops_while_a_guest_polls() -> None:
    loop = IoLoop(lends=True)
    loop.start()
    thread = threading.Thread(target=lambda: loop.serve(lambda: False))
    thread.start()
    wait_for(lambda: loop._turn.holder == thread.ident)
    loop.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert not loop._thread.is_alive()
    loop.serve(lambda: False)  # nobody to serve any more: returns


def test_an_asyncio_loop_is_a_guest_too(loop: IoLoop) -> None:
    reader, writer = os.pipe()
    threads: set[int] = set()
    here = asyncio.SelectorEventLoop(LentSelector(loop))

    async def main() -> None:
        done = asyncio.Event()

        def ready() -> None:
            threads.add(threading.get_ident())
            if os.read(reader, 1) == b"z":
                here.call_soon_threadsafe(done.set)

        await asyncio.to_thread(loop.run_on_loop, lambda: loop.add_reader(reader, ready), 10)
        for letter in b"abcz":
            os.write(writer, bytes([letter]))
            await asyncio.sleep(0.002)  # asyncio's own timers still run
        await asyncio.wait_for(done.wait(), 10)
        await asyncio.to_thread(loop.run_on_loop, lambda: loop.remove_reader(reader), 10)

    here.run_until_complete(main())
    here.run_until_complete(here.shutdown_default_executor())
    here.close()
    assert threading.get_ident() in threads
    os.close(reader)
    os.close(writer)


def test_an_asyncio_loop_without_guests_leaves_the_turn_to_others(loop: IoLoop) -> None:
    has_guests = [False]
    here = asyncio.SelectorEventLoop(LentSelector(loop, lambda: has_guests[0]))

    async def holder() -> int:
        return await asyncio.to_thread(loop.run_on_loop, lambda: loop._turn.holder, 10)

    async def becomes(ident: int | None) -> None:
        while await holder() != ident:
            pass

    def until(ident: int | None) -> None:
        here.run_until_complete(asyncio.wait_for(becomes(ident), 10))

    until(loop._thread.ident)
    has_guests[0] = True
    until(threading.get_ident())
    here.run_until_complete(here.shutdown_default_executor())
    here.close()
