"""Coroutine functions that return futures: when their bodies run, where, and how often."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import signal
import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from monarch.actor import Future, returns_future, this_proc
from monarch.actor.returns_future import WouldBlockRuntime, _this_thread
from monarch.compat.actor_side import fake_sync_state
from tests.actors import Echo
from tests.support import wait_for

SECONDS = 60.0
setting: contextvars.ContextVar[str] = contextvars.ContextVar("setting", default="unset")
began: list[int] = []


@pytest.fixture(autouse=True)
def nothing_has_begun() -> Iterator[None]:
    began.clear()
    yield
    began.clear()


@pytest.fixture(scope="module", autouse=True)
def this_threads_loop_ends() -> Iterator[None]:
    yield
    _this_thread.__dict__.clear()


@returns_future
async def double(value: int, fails: bool = False) -> int:
    began.append(threading.get_ident())
    await asyncio.sleep(0)
    if fails:
        raise ValueError(value)
    return 2 * value


def test_a_body_begins_when_its_result_is_wanted_and_runs_once() -> None:
    future = double(3)
    assert isinstance(future, Future)
    assert began == []
    assert future.get(timeout=SECONDS) == 6
    assert future.get() == 6

    async def observe(future: Future[Any]) -> list[Any]:
        return [await future, await future, future.get(), future.result()]

    assert asyncio.run(observe(future)) == [6] * 4
    assert began == [threading.get_ident()]
    assert asyncio.run(observe(double(4))) == [8] * 4
    assert began == [threading.get_ident()] * 2


def test_a_body_that_nobody_wants_does_not_begin() -> None:
    double(3)
    gc.collect()
    assert began == []


def test_a_body_may_await_calls() -> None:
    echo = this_proc().spawn("echo", Echo)

    @returns_future
    async def ask(value: int) -> int:
        answer: int = await echo.echo.call_one(value)
        return answer + 1

    assert ask(1).get(timeout=SECONDS) == 2


def test_what_a_body_raises_is_raised_to_all() -> None:
    future = double(3, fails=True)
    for _ in range(2):
        with pytest.raises(ValueError, match="3"):
            future.get(timeout=SECONDS)
    assert isinstance(future.exception(), ValueError)
    assert len(began) == 1


def test_a_body_sees_the_callers_context_and_keeps_its_changes() -> None:
    @returns_future
    async def read() -> str:
        before = setting.get()
        setting.set("changed")
        return before

    setting.set("of the caller")
    future = read()
    setting.set("later")
    assert future.get(timeout=SECONDS) == "of the caller"
    assert setting.get() == "later"


def test_a_get_whose_time_is_up_cancels_the_body() -> None:
    ends: list[str] = []

    @returns_future
    async def stay() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cancelled")
        return "never"

    future = stay()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            future.get(timeout=0.01)
    assert ends == ["cancelled"]
    with pytest.raises(ValueError, match="invalid timeout"):
        stay().get(timeout=-1)


def test_who_cancels_an_await_cancels_nothing_else() -> None:
    async def main() -> int:
        gate = asyncio.Event()

        @returns_future
        async def wait() -> int:
            await gate.wait()
            return 7

        future = wait()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(future, 0.01)
        gate.set()
        return await future

    assert asyncio.run(main()) == 7


def test_an_asyncio_future_begins_the_body_whatever_becomes_of_it() -> None:
    async def main() -> int:
        future = double(3)
        future.as_asyncio().cancel()
        await asyncio.sleep(0)
        assert len(began) == 1
        return await future

    assert asyncio.run(main()) == 6


def test_a_get_inside_a_loop_runs_the_body_beside_it() -> None:
    async def main() -> int:
        with pytest.warns(UserWarning, match="active event loop"):
            return double(3).get(timeout=SECONDS)

    assert asyncio.run(main()) == 6
    assert began[0] != threading.get_ident()


def test_an_asyncio_future_is_cancelled_at_once_and_done_at_once() -> None:
    async def main() -> None:
        future = double(3)
        observer = future.as_asyncio()
        assert observer.cancel()
        assert observer.cancelled()
        assert await future == 6
        again = future.as_asyncio()
        assert again.done()
        assert again.result() == 6
        failed = double(3, fails=True).as_asyncio()
        with pytest.raises(ValueError, match="3"):
            await failed

    asyncio.run(main())


def test_a_get_that_would_stop_its_own_loop_is_refused() -> None:
    async def main() -> int:
        future = double(3)
        observer = future.as_asyncio()
        for timeout in (None, SECONDS):
            with pytest.raises(WouldBlockRuntime, match="Use `await` instead"):
                future.get(timeout)
        assert await observer == 6
        return future.get()

    assert asyncio.run(main()) == 6


def test_a_refused_observer_leaves_the_body_to_others() -> None:
    future = double(3)
    with pytest.raises(RuntimeError, match="no running event loop"):
        future.as_asyncio()
    with pytest.raises(RuntimeError, match="no running event loop"):
        future.__await__()

    async def get() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="active event loop"):
                future.get()

    asyncio.run(get())
    assert began == []
    assert future.get(timeout=SECONDS) == 6


def test_an_interrupt_cancels_the_body_that_runs_beside_a_loop() -> None:
    ends: list[str] = []

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    @returns_future
    async def stay() -> str:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGUSR1)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ends.append("cancelled")
        return "never"

    future = stay()

    async def get() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            future.get(timeout=SECONDS)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(get())
    finally:
        signal.signal(signal.SIGUSR1, before)
    wait_for(lambda: ends == ["cancelled"])
    with pytest.raises(asyncio.CancelledError):
        future.get()


def test_where_no_thread_is_to_be_had_all_who_ask_hear_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    future = double(3)

    async def get() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(RuntimeError, match="new thread"):
                future.get(timeout=SECONDS)

    with monkeypatch.context() as patches:
        patches.setattr(threading.Thread, "start", refuse)
        asyncio.run(get())
    with pytest.raises(RuntimeError, match="new thread"):
        future.get(timeout=SECONDS)
    assert began == []


def test_bodies_of_one_thread_share_its_loop_which_ends_with_the_thread() -> None:
    closed: list[str] = []
    cancelled: list[bool] = []
    generators: list[Any] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append("generator")

    async def stay() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    @returns_future
    async def leave() -> asyncio.AbstractEventLoop:
        generators.append(numbers())
        await generators[-1].__anext__()
        generators.append(asyncio.create_task(stay()))
        await asyncio.to_thread(int)
        return asyncio.get_running_loop()

    loops: list[asyncio.AbstractEventLoop] = []

    def get_twice() -> None:
        for _ in range(2):
            loops.append(leave().get(timeout=SECONDS))
            assert len(cancelled) == len(loops)
            assert not loops[-1].is_closed()

    thread = threading.Thread(target=get_twice)
    thread.start()
    thread.join(SECONDS)
    assert len(loops) == 2
    assert loops[0] is loops[1]
    wait_for(loops[0].is_closed)
    assert closed == ["generator"] * 2


def test_a_get_within_a_body_runs_beside_it_though_its_loop_is_hidden() -> None:
    @returns_future
    async def outer() -> int:
        with fake_sync_state():
            return double(4).get(timeout=SECONDS)

    assert outer().get(timeout=SECONDS) == 8
    assert began[0] != threading.get_ident()


def test_a_loop_that_cannot_be_made_fails_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError("too many files")

    future = double(3)

    def get() -> None:
        with pytest.raises(OSError, match="too many files"):
            future.get()

    with monkeypatch.context() as patches:
        patches.setattr(asyncio, "new_event_loop", refuse)
        thread = threading.Thread(target=get)
        thread.start()
        thread.join(SECONDS)
    get()
    assert began == []


def test_only_coroutine_functions_return_futures() -> None:
    with pytest.raises(TypeError, match="async function"):
        returns_future(lambda: 1)  # type: ignore[arg-type, return-value]
    assert double.__name__ == "double"
