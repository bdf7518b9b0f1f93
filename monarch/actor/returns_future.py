"""Coroutine functions for callers with and without an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, ParamSpec, TypeVar

from monarch.actor.future import Future
from monarch.runtime import process
from monarch.runtime.promise import Promise

__all__ = ["returns_future"]

P = ParamSpec("P")
R = TypeVar("R")

_Outcome = tuple[Any, BaseException | None]

# asyncio itself keeps its tasks only weakly.
_under_way: set[asyncio.Task[Any]] = set()


def returns_future(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Future[R]]:
    """Have a coroutine function return a ``Future``, to be awaited or to ``get()``.

    The body begins when somebody first asks for its result, and runs once: on the loop of who
    awaits, or on the thread of who calls ``get``, in a loop of its own. A ``get`` whose time is up,
    or that is interrupted, cancels the body it runs; then all get that error. Who cancels an
    ``await`` cancels nothing else. Raises ``TypeError`` for what is no coroutine function.
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
    """The result of a coroutine that has not begun before somebody wants it."""

    _body: Coroutine[Any, Any, R] | None
    _context: contextvars.Context

    @classmethod
    def of(cls, body: Coroutine[Any, Any, R]) -> Future[R]:
        future: _BodyFuture[R] = object.__new__(cls)
        future._body = body
        future._context = contextvars.copy_context()
        future._promise = Promise()
        future._resolve = _value_of
        future._lock = threading.Lock()
        future._outcome = None
        return future

    def get(self, timeout: float | None = None) -> R:
        self._check_timeout(timeout)
        body = self._take_body()
        if body is None:
            return super().get(timeout)
        if asyncio._get_running_loop() is None:
            self._run(body, timeout)
            return super().get()
        self._warn_inside_loop()
        # A loop cannot run inside another one of the same thread.
        helper = threading.Thread(target=self._run, args=(body, timeout), name="monarch-body")
        helper.start()
        helper.join()
        return self._take()

    def __await__(self) -> Generator[Any, None, R]:
        self._begin()
        return super().__await__()

    def as_asyncio(self) -> asyncio.Future[R]:
        self._begin()
        return super().as_asyncio()

    def _begin(self) -> None:
        body = self._take_body()
        if body is not None:
            task = self._context.run(asyncio.get_running_loop().create_task, body)
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
        task = asyncio.get_running_loop().create_task(body)
        if not (await asyncio.wait({task}, timeout=timeout))[0]:
            # Said before the body hears of it: what it does about that changes nothing.
            error = TimeoutError(f"no result within {timeout} s")
            self._promise.set((None, error))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise error
        return task.result()

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
