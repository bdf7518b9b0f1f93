"""Coroutine functions for callers with and without an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, ParamSpec, TypeVar

from monarch.actor.future import Future, fill_future, soon, value_of_outcome
from monarch.runtime import process
from monarch.runtime.promise import Promise

P = ParamSpec("P")
R = TypeVar("R")

_Body = Coroutine[Any, Any, Any]
_Loop = asyncio.AbstractEventLoop
_Outcome = tuple[Any, BaseException | None]

# asyncio itself keeps its tasks only weakly.
_under_way: set[asyncio.Task[Any]] = set()


class WouldBlockRuntime(RuntimeError):
    """A wait would block the event loop that the awaited coroutine runs on."""


class _ThreadLoop:
    """The event loop of a thread; each ``get`` of the thread runs its coroutine on it.

    It is closed when the thread ends. So locks and connections that one coroutine leaves can be
    used by the next.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.process = os.getpid()

    def __del__(self) -> None:
        if self.process != os.getpid():
            # A forked child shares its epoll with its parent: to close it would deafen the parent.
            _inherited.append(self.loop)
        elif sys.is_finalizing():
            self.loop.close()
        else:
            _close(self.loop)


_inherited: list[asyncio.AbstractEventLoop] = []
_this_thread = threading.local()


def _thread_loop() -> asyncio.AbstractEventLoop:
    own: _ThreadLoop | None = getattr(_this_thread, "loop", None)
    if own is None or own.process != os.getpid() or own.loop.is_closed():
        own = _this_thread.loop = _ThreadLoop(asyncio.new_event_loop())
    return own.loop


def returns_future(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Future[R]]:
    """Make a coroutine function return a ``Future`` that can be awaited or asked with ``get()``.

    The body starts when its result is first asked for, and runs once: on the loop that awaits it,
    or on the thread that calls ``get``, in the loop that all ``get`` calls of this thread share.
    Tasks that the body leaves behind are cancelled when ``get`` returns. If that ``get`` times out
    or is interrupted, the body is cancelled and all callers get the error. Cancelling an ``await``
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

    #: The coroutine, until somebody runs it.
    _body: Coroutine[Any, Any, R] | None
    _context: contextvars.Context
    #: The loop that awaits it, on which the body runs, and the thread of that loop.
    _home: tuple[asyncio.AbstractEventLoop, int] | None
    #: Set when the body that runs on another thread is to be cancelled.
    _interrupted: Promise[None]

    @classmethod
    def of(cls, body: Coroutine[Any, Any, R]) -> Future[R]:
        future: _BodyFuture[R] = object.__new__(cls)
        fill_future(future, Promise(), value_of_outcome)
        future._body = body
        future._context = contextvars.copy_context()
        future._home = None
        future._interrupted = Promise()
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
        is_beside = is_inside or getattr(_this_thread, "is_running", False)
        try:
            loop = asyncio.new_event_loop() if is_beside else _thread_loop()
        except BaseException as error:
            body.close()
            self._promise.set(_shared(error))
            raise
        if is_beside:
            self._run_beside(body, loop, timeout)
        else:
            self._run_here(body, loop, timeout)
        return value_of_outcome(self._computed())

    def _check_elsewhere(self) -> None:
        """Raise ``RuntimeError`` if waiting here would block the loop that the body runs on."""
        if self._home is None or self._promise.is_set:
            return
        loop, thread = self._home
        if thread == threading.get_ident() and loop.is_running():
            raise WouldBlockRuntime(
                "Future.get() would wait for ever: what it waits for runs on the event loop of "
                "this thread. Use `await` instead."
            )

    def _run_here(self, body: _Body, loop: _Loop, timeout: float | None) -> None:
        _this_thread.is_running = True
        try:
            self._run(body, loop, timeout)
        except BaseException:
            _this_thread.loop = None  # Its interrupted tasks may not have ended.
            raise
        finally:
            _this_thread.is_running = False

    def _run_beside(self, body: _Body, loop: _Loop, timeout: float | None) -> None:
        """Run the body on another thread: this thread runs a loop already."""
        ended = threading.Event()

        def run() -> None:
            try:
                self._run(body, loop, timeout)
            except BaseException:
                pass  # The promise has the error.
            finally:
                try:
                    _close(loop)
                finally:
                    ended.set()

        try:
            threading.Thread(target=run, name="monarch-body", daemon=True).start()
        except RuntimeError as error:
            loop.close()
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

    def _run(self, body: _Body, loop: _Loop, timeout: float | None) -> None:
        """Run the body to its end on a loop that is not running yet, and set the promise."""
        try:
            task = self._context.run(loop.create_task, body)
            self._interrupted.on_set(lambda: soon(loop, task.cancel))
            try:
                done, _ = loop.run_until_complete(asyncio.wait({task}, timeout=timeout))
                if not done:
                    raise TimeoutError(f"no result within {timeout} s")
            except BaseException as error:
                # Set before the body is cancelled: the body's own reaction does not change it.
                self._promise.set(_shared(error))
                task.cancel()
                loop.run_until_complete(asyncio.wait({task}))
                if not isinstance(error, TimeoutError):
                    raise
            self._set_from(task)
        finally:
            _cancel_tasks(loop)

    def _set_from(self, task: asyncio.Task[R]) -> None:
        if task.cancelled():
            self._promise.set((None, asyncio.CancelledError()))
            return
        error = task.exception()
        self._promise.set((None, error) if error is not None else (task.result(), None))

    def _interrupt(self) -> None:
        """Cancel the body that runs on another thread."""
        self._promise.set((None, asyncio.CancelledError()))
        self._interrupted.set(None)

    def _finished(self, task: asyncio.Task[R]) -> None:
        _under_way.discard(task)
        self._set_from(task)


def _shared(error: BaseException) -> _Outcome:
    """Return the outcome that other callers get when a body has raised ``error``.

    They get ``CancelledError`` for an interrupt, such as Ctrl-C, because only one thread got that.
    """
    return None, error if isinstance(error, Exception) else asyncio.CancelledError()


def _cancel_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks that a body has left, and wait for their end, as ``asyncio.run`` does."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))
    for task in tasks:
        if not task.cancelled() and task.exception() is not None:
            message = "a task that the body of a Future left behind raised"
            loop.call_exception_handler(
                {"message": message, "exception": task.exception(), "task": task}
            )


def _close(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
