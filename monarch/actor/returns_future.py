"""Coroutine functions for callers with and without an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, ParamSpec, TypeVar

from monarch.actor.future import Future, soon
from monarch.runtime import process
from monarch.runtime.promise import Promise

P = ParamSpec("P")
R = TypeVar("R")

_Outcome = tuple[Any, BaseException | None]

# asyncio itself keeps its tasks only weakly.
_under_way: set[asyncio.Task[Any]] = set()


def returns_future(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Future[R]]:
    """Make a coroutine function return a ``Future`` that can be awaited or asked with ``get()``.

    The body starts when its result is first asked for, and runs once: on the loop that awaits it,
    or on the thread that calls ``get``, in a loop of its own. If that ``get`` times out or is
    interrupted, the body is cancelled and all callers get the error. Cancelling an ``await``
    cancels nothing else. Raises ``TypeError`` if ``function`` is not a coroutine function.
    """
    if not inspect.iscoroutinefunction(function):
        raise TypeError("returns_future requires an async function")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Future[R]:
        body = function(*args, **kwargs)
        try:
            # Here, so that no loop of ours is the one that a client is made in.
            process.current()
        except BaseException:
            body.close()
            raise
        return _BodyFuture.of(body)

    return call


class _BodyFuture(Future[R]):
    """The result of a coroutine that starts only when the result is asked for."""

    _body: Coroutine[Any, Any, R] | None
    _context: contextvars.Context
    # The loop that awaits it, on which the body runs, and the thread of that loop.
    _home: tuple[asyncio.AbstractEventLoop, int] | None
    _interrupted: Promise[None]

    @classmethod
    def of(cls, body: Coroutine[Any, Any, R]) -> Future[R]:
        future: _BodyFuture[R] = object.__new__(cls)
        future._body = body
        future._context = contextvars.copy_context()
        future._home = None
        future._interrupted = Promise()
        future._promise = Promise()
        future._resolve = _value_of
        future._lock = threading.Lock()
        future._outcome = None
        return future

    def get(self, timeout: float | None = None) -> R:
        self._check_timeout(timeout)
        is_inside = asyncio._get_running_loop() is not None
        if is_inside and self._body is not None:
            # Before the body is taken: if warnings are errors, the body can still be run later.
            self._warn_inside_loop()
        body = self._take_body()
        if body is None:
            self._check_elsewhere()
            return super().get(timeout)
        if is_inside:
            self._run_beside(body, timeout)
        else:
            self._run(body, timeout)
        return self._given(self._computed())

    def _check_elsewhere(self) -> None:
        """Raise ``RuntimeError`` if waiting here would block the loop that the body runs on."""
        if self._home is None or self._promise.is_set:
            return
        loop, thread = self._home
        if thread == threading.get_ident() and loop.is_running():
            raise RuntimeError(
                "Future.get() would wait for ever: what it waits for runs on the event loop of "
                "this thread. Use `await` instead."
            )

    def _run_beside(self, body: Coroutine[Any, Any, R], timeout: float | None) -> None:
        """Run the body on another thread: a loop cannot run inside another one of its thread."""
        ended = threading.Event()

        def run() -> None:
            try:
                self._run(body, timeout)
            except BaseException:
                pass  # The promise has it, for all who ask.
            finally:
                ended.set()

        try:
            threading.Thread(target=run, name="monarch-body", daemon=True).start()
        except RuntimeError as error:
            body.close()
            self._promise.set((None, error))
            raise
        except BaseException:
            self._interrupt()
            raise
        try:
            ended.wait()
        except BaseException:
            self._interrupt()
            ended.wait()
            raise

    def __await__(self) -> Generator[Any, None, R]:
        self._begin()
        return super().__await__()

    def as_asyncio(self) -> asyncio.Future[R]:
        self._begin()
        return super().as_asyncio()

    def _begin(self) -> None:
        if self._body is None:
            return
        loop = asyncio.get_running_loop()
        body = self._take_body()
        if body is not None:
            self._home = loop, threading.get_ident()
            task = self._context.run(loop.create_task, body)
            _under_way.add(task)
            task.add_done_callback(self._finished)

    def __del__(self) -> None:
        if self._body is not None:
            self._body.close()

    def _take_body(self) -> Coroutine[Any, Any, R] | None:
        with self._lock:
            body, self._body = self._body, None
        return body

    def _run(self, body: Coroutine[Any, Any, R], timeout: float | None) -> None:
        try:
            value = self._context.run(asyncio.run, self._within(body, timeout))
        except Exception as error:
            self._promise.set((None, error))
        except BaseException as interrupt:
            self._promise.set((None, asyncio.CancelledError()))
            raise interrupt
        else:
            self._promise.set((value, None))

    async def _within(self, body: Coroutine[Any, Any, R], timeout: float | None) -> R:
        loop = asyncio.get_running_loop()
        task = loop.create_task(body)
        self._interrupted.on_set(lambda: soon(loop, task.cancel))
        if not (await asyncio.wait({task}, timeout=timeout))[0]:
            # Set before the body is cancelled: the body's own reaction does not change it.
            error = TimeoutError(f"no result within {timeout} s")
            self._promise.set((None, error))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise error
        return task.result()

    def _interrupt(self) -> None:
        """Cancel the body that runs on another thread."""
        self._promise.set((None, asyncio.CancelledError()))
        self._interrupted.set(None)

    def _finished(self, task: asyncio.Task[R]) -> None:
        _under_way.discard(task)
        if task.cancelled():
            self._promise.set((None, asyncio.CancelledError()))
            return
        error = task.exception()
        self._promise.set((None, error) if error is not None else (task.result(), None))


def _value_of(outcome: _Outcome) -> Any:
    value, error = outcome
    if error is not None:
        raise error
    return value
