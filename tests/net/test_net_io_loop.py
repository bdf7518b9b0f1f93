from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch.net.io_loop import IoLoop
from tests.support import wait_for


@pytest.fixture
def loop() -> Iterator[IoLoop]:
    loop = IoLoop()
    loop.start()
    yield loop
    loop.stop()


def settle(loop: IoLoop) -> None:
    loop.run_on_loop(lambda: None, timeout=10)


def test_what_is_handed_over_runs_in_order_on_the_loop(loop: IoLoop) -> None:
    seen: list[Any] = []
    for i in range(1000):
        loop.call_soon(lambda i=i: seen.append((i, loop.is_current())))  # type: ignore[misc]
    settle(loop)
    assert seen == [(i, True) for i in range(1000)]


def test_each_threads_order_is_kept(loop: IoLoop) -> None:
    seen: list[tuple[int, int]] = []

    def hand_over(who: int) -> None:
        for i in range(500):
            loop.call_soon(lambda i=i: seen.append((who, i)))  # type: ignore[misc]

    threads = [threading.Thread(target=hand_over, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    settle(loop)
    for who in range(4):
        assert [i for w, i in seen if w == who] == list(range(500))


def test_timers_run_when_due_and_in_that_order(loop: IoLoop) -> None:
    seen: list[tuple[str, float]] = []
    start = loop.time()

    def set_all() -> None:
        # On the loop: nothing runs there before the last is set.
        for name, seconds in [("late", 0.06), ("soon", 0.02), ("now", 0.0)]:
            loop.call_later(seconds, lambda name=name: seen.append((name, loop.time() - start)))  # type: ignore[misc]

    loop.run_on_loop(set_all)
    wait_for(lambda: len(seen) == 3)
    assert [name for name, _ in seen] == ["now", "soon", "late"]
    assert all(when >= due for (_, when), due in zip(seen, (0.0, 0.02, 0.06), strict=True))


def test_a_cancelled_timer_does_not_run(loop: IoLoop) -> None:
    seen: list[str] = []

    def set_both() -> None:
        # On the loop: nothing runs there before the first is cancelled.
        loop.call_later(0.01, lambda: seen.append("cancelled")).cancel()
        loop.call_later(0.03, lambda: seen.append("kept"))

    loop.run_on_loop(set_both)
    wait_for(lambda: seen)
    assert seen == ["kept"]


def test_a_timer_may_set_another(loop: IoLoop) -> None:
    seen: list[int] = []

    def again() -> None:
        seen.append(len(seen))
        if len(seen) < 3:
            loop.call_later(0.001, again)

    loop.call_later(0.001, again)
    wait_for(lambda: len(seen) == 3)


def test_a_reader_is_called_while_there_is_something_to_read(loop: IoLoop) -> None:
    reader, writer = os.pipe()
    seen: list[bytes] = []
    loop.run_on_loop(lambda: loop.add_reader(reader, lambda: seen.append(os.read(reader, 1))))
    os.write(writer, b"abc")
    wait_for(lambda: seen == [b"a", b"b", b"c"])
    loop.run_on_loop(lambda: loop.remove_reader(reader))
    os.write(writer, b"d")
    settle(loop)
    settle(loop)
    assert seen == [b"a", b"b", b"c"]
    os.close(reader)
    os.close(writer)


def test_removing_an_unknown_reader_is_fine(loop: IoLoop) -> None:
    loop.run_on_loop(lambda: loop.remove_reader(12345))


def test_a_reader_may_remove_another_that_is_ready_too(loop: IoLoop) -> None:
    pipes = [os.pipe() for _ in range(2)]
    seen: list[int] = []

    def ready(mine: int) -> None:
        seen.append(mine)
        for reader, _ in pipes:
            loop.remove_reader(reader)

    def watch() -> None:
        for number, (reader, _) in enumerate(pipes):
            loop.add_reader(reader, lambda number=number: ready(number))  # type: ignore[misc]
        for _, writer in pipes:
            os.write(writer, b"x")

    loop.run_on_loop(watch)
    wait_for(lambda: seen)
    settle(loop)
    assert len(seen) == 1
    for pipe in pipes:
        for fd in pipe:
            os.close(fd)


def test_a_broken_callback_is_logged_once_and_ends_nothing(
    loop: IoLoop, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise ValueError("broken on purpose")

    def broken_otherwise() -> None:
        raise ValueError("broken elsewhere")

    with caplog.at_level(logging.ERROR, "monarch.net"):
        for _ in range(10):
            loop.call_soon(broken)
        loop.call_later(0.0, broken_otherwise)
        wait_for(lambda: len(caplog.records) == 2)
    assert "broken on purpose" in caplog.text
    assert "broken elsewhere" in caplog.text
    settle(loop)


def test_run_on_loop_gives_the_result_or_raises_the_error(loop: IoLoop) -> None:
    assert loop.run_on_loop(lambda: (loop.is_current(), 7)) == (True, 7)
    assert loop.run_on_loop(lambda: loop.run_on_loop(lambda: "nested")) == "nested"
    with pytest.raises(KeyError, match="inner"):
        loop.run_on_loop(lambda: {}["inner"])


def test_what_was_taken_at_the_last_moment_is_run_once_and_its_result_given() -> None:
    """Who is told that the loop has ended does it by himself, at the same time."""
    taken = threading.Event()

    class Late(IoLoop):
        def call_soon(self, action: Callable[[], None]) -> bool:
            is_taken = super().call_soon(action)
            if threading.current_thread() is asking:
                taken.set()
                wait_for(lambda: self._has_ended)
            return is_taken

    loop = Late()
    told: list[object] = []

    def ask() -> None:
        try:
            told.append(loop.run_on_loop(lambda: "done", timeout=20))
        except RuntimeError as error:
            told.append(error)

    def end() -> None:
        loop._set_stopping()
        # What runs when the loop has ended, before what the other thread hands over now.
        loop._soon.append(lambda: asking.join(0.3))
        asking.start()
        taken.wait(20)

    asking = threading.Thread(target=ask)
    loop.start()
    loop.call_soon(end)
    wait_for(lambda: told)
    loop.stop()
    assert told == ["done"]


def test_run_on_loop_gives_up_in_time(loop: IoLoop) -> None:
    release = threading.Event()
    loop.call_soon(lambda: release.wait(10))
    with pytest.raises(TimeoutError):
        loop.run_on_loop(lambda: None, timeout=0.02)
    release.set()


def test_stopping_ends_the_thread_after_what_was_handed_over() -> None:
    loop = IoLoop("a-loop-of-its-own")
    loop.start()
    seen: list[int] = []
    for i in range(100):
        loop.call_soon(lambda i=i: seen.append(i))  # type: ignore[misc]
    loop.stop()
    assert seen == list(range(100))
    assert "a-loop-of-its-own" not in {thread.name for thread in threading.enumerate()}


def test_after_stopping_all_is_quiet() -> None:
    loop = IoLoop()
    loop.start()
    loop.stop()
    # Its wake-up descriptor is closed: this one probably has the same number now.
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    loop.call_soon(lambda: None)
    loop.call_later(0.0, lambda: None)
    loop.stop()
    with pytest.raises(RuntimeError, match="has ended"):
        loop.run_on_loop(lambda: None)
    with pytest.raises(BlockingIOError):
        os.read(reader, 8)
    os.close(reader)
    os.close(writer)


def test_the_loop_may_stop_itself(loop: IoLoop) -> None:
    loop.call_soon(loop.stop)
    wait_for(lambda: not loop._thread.is_alive())
