"""Signals that come while the main thread runs callbacks of the I/O loop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from monarch.net.guest import invite, wait_until
from monarch.net.io_loop import IoLoop
from monarch.net.put_off import PutOff, handler_of


@pytest.fixture
def loop() -> Iterator[IoLoop]:
    loop = IoLoop(lends=True)
    loop.start()
    invite(loop)
    yield loop
    invite(None)
    loop.stop()


@pytest.fixture
def alarm() -> Iterator[int]:
    """A signal whose handler raises, as an alarm of the program's own may."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError("too late")

    before = signal.signal(signal.SIGALRM, late)
    yield signal.SIGALRM
    signal.signal(signal.SIGALRM, before)


def test_handlers_are_called_at_the_end_and_back_in_their_places(alarm: int) -> None:
    before = [signal.getsignal(signal.SIGINT), signal.getsignal(alarm)]
    found: list[object] = []
    woken: list[int] = []

    def press_both() -> None:
        with PutOff(lambda: woken.append(1)):
            signal.raise_signal(alarm)
            signal.raise_signal(signal.SIGINT)
            found.extend([handler_of(signal.SIGINT), handler_of(alarm)])

    with pytest.raises(KeyboardInterrupt) as caught:
        press_both()
    assert found == before
    assert isinstance(caught.value.__context__, TimeoutError)
    assert woken == [1, 1]
    assert [signal.getsignal(signal.SIGINT), signal.getsignal(alarm)] == before


def test_what_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with PutOff(lambda: None) as signals:
            signal.raise_signal(signal.SIGINT)
        assert not signals.noted
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_a_signal_in_a_callback_is_raised_by_the_wait_and_the_callback_runs_through(
    loop: IoLoop, alarm: int, error: type[BaseException]
) -> None:
    number = alarm if error is TimeoutError else signal.SIGINT
    threads: list[int] = []

    def callback() -> None:
        signal.raise_signal(number)
        threads.append(threading.get_ident())

    def once_we_poll() -> None:
        # Again until the main thread, which waits, runs it.
        if threading.get_ident() == threading.main_thread().ident:
            callback()
        else:
            loop.call_later(0.01, once_we_poll)

    loop.call_soon(once_we_poll)
    with pytest.raises(error):
        wait_until(lambda: False, timeout=20)
    assert threads == [threading.main_thread().ident]
    loop.run_on_loop(lambda: None, timeout=10)  # Somebody polls.


def test_a_signal_ends_a_wait_in_which_nothing_comes(loop: IoLoop) -> None:
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        if loop._turn.holder == main:
            signal.pthread_kill(main, signal.SIGINT)
        else:
            threading.Timer(0.01, press).start()

    threading.Timer(0.01, press).start()
    with pytest.raises(KeyboardInterrupt):
        wait_until(lambda: False, timeout=20)
