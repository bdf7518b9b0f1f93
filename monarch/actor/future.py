"""The answer to a call, for threads and for asyncio alike."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable, Generator, Hashable
from typing import Any, Generic, NoReturn, TypeVar

from monarch.net.cork import flush
from monarch.net.guest import wait_a_moment
from monarch.runtime import process
from monarch.runtime.context import Running, running
from monarch.runtime.promise import Promise
from monarch.runtime.waits import Wait, waits

R = TypeVar("R")
T = TypeVar("T")

_Outcome = tuple[R | None, BaseException | None]

_TO_COME = "this is a Future, an answer to come:"
_OWN_FOLDER = os.path.dirname(os.path.dirname(__file__))
_POLL_SECONDS = 2.0
"""Shorter waits are not watched for deadlocks: they end by themselves."""


class Future(Generic[R]):
    """The result of a call in progress.

    The message was sent when the call was made; ``get`` and ``await`` only wait for the answer, and
    may be used any number of times, by any number of threads and tasks.
    """

    _promise: Promise[Any]
    _resolve: Callable[[Any], R]
    _lock: threading.Lock
    _outcome: _Outcome[R] | None

    def __init__(self) -> None:
        raise TypeError(
            "Future objects are returned by Monarch operations: they are made by calls, not by hand"
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"'Future' object has no attribute {name!r}: it is an answer to come. "
            f"`.get().{name}`, or `(await future).{name}` in async code"
        )

    def __getitem__(self, key: object) -> NoReturn:
        raise TypeError(f"{_TO_COME} `.get()` (or `await`) gives it")

    def __iter__(self) -> NoReturn:
        raise TypeError(f"{_TO_COME} `.get()` (or `await`) gives it, and that can be iterated over")

    def __repr__(self) -> str:
        if not self.done():
            return "<Future: not there yet; .get() or await waits for it>"
        return "<Future: the answer is there; .get() or await gives it>"

    def get(self, timeout: float | None = None) -> R:
        """Wait for the answer, at most ``timeout`` seconds, and return it.

        Raises ``TimeoutError`` if it has not come by then (ask again later: nothing is lost),
        ``ActorError`` if the endpoint raised, ``SupervisionError`` if a member of the mesh has
        died.
        """
        return value_of_outcome(self._outcome_within(timeout))

    def _outcome_within(self, timeout: float | None) -> _Outcome[R]:
        self._check_timeout(timeout)
        if not self._promise.is_set:
            self._warn_inside_loop()
            if not self._wait(timeout):
                raise TimeoutError(f"no answer within {timeout} s")
        return self._computed()

    def _wait(self, timeout: float | None) -> bool:
        actor = running.get()
        if actor is None or (timeout is not None and timeout <= _POLL_SECONDS):
            return self._promise.wait(timeout)
        promise, thread = self._promise, threading.get_ident()
        flush()  # The actor's answers must leave before the news that it waits.
        _record_wait(thread, actor, promise)
        try:
            return promise.wait(timeout)
        finally:
            waits.pop(thread, None)

    @staticmethod
    def _check_timeout(timeout: float | None) -> None:
        is_number = timeout is None or isinstance(timeout, (int, float))
        if not is_number or (timeout is not None and not (0 <= timeout < math.inf)):
            shown = timeout if is_number else repr(timeout)
            raise ValueError(
                f"invalid timeout {shown}: expected a non-negative, finite number of seconds"
            )

    @staticmethod
    def _warn_inside_loop() -> None:
        loop = asyncio._get_running_loop()
        if loop is not None and not _is_cell_alone(loop):
            warnings.warn(
                "Future.get() was called from within an active event loop: nothing else runs on it "
                "meanwhile. Use `await` instead.",
                UserWarning,
                stacklevel=4,
            )

    def _computed(self) -> _Outcome[R]:
        """Return the unpickled answer, or its error. The first thread that asks unpickles it."""
        outcome = self._outcome
        if outcome is None:
            with self._lock:
                if self._outcome is None:
                    self._outcome = self._compute()
                outcome = self._outcome
        return outcome

    def _compute(self) -> _Outcome[R]:
        try:
            return self._resolve(self._promise.value), None
        except KeyboardInterrupt:
            raise  # Ctrl-C is no answer: the next call computes it again.
        except BaseException as error:
            return None, error

    def __await__(self) -> Generator[Any, None, R]:
        return value_of_outcome((yield from self._outcome_awaited()))

    def _outcome_awaited(self) -> Generator[Any, None, _Outcome[R]]:
        promise = self._promise
        is_idle = not promise.is_set and not _has_more_to_do(asyncio.get_running_loop())
        if is_idle and wait_a_moment(lambda: promise.is_set):
            yield  # Tasks that sleep or wait for a socket have their turn all the same.
        if not self._promise.is_set:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            self._promise.on_set(lambda: soon(loop, _wake, waiter))
            flush()
            actor, task = running.get(), asyncio.current_task()
            if actor is None or task is None:
                yield from waiter
            else:
                _record_wait(task, actor, self._promise)
                try:
                    yield from waiter
                finally:
                    waits.pop(task, None)
        return self._computed()

    def as_asyncio(self) -> asyncio.Future[R]:
        """Return an asyncio future of the running loop with the same result."""
        loop = asyncio.get_running_loop()
        observer: asyncio.Future[R] = loop.create_future()
        if self._promise.is_set:
            self._settle(observer)
        else:
            self._promise.on_set(lambda: soon(loop, self._settle, observer))
            flush()
        return observer

    def _settle(self, observer: asyncio.Future[R]) -> None:
        if observer.done():
            return
        try:
            value, error = self._computed()
        except KeyboardInterrupt as interrupt:
            value, error = None, interrupt
        if error is not None:
            observer.set_exception(error)
        else:
            observer.set_result(value)  # type: ignore[arg-type]

    def then(self, resolve: Callable[[R], T]) -> Future[T]:
        """Return a future of ``resolve(value)``, computed when it is first asked for.

        It raises the error of this future, or of ``resolve``.
        """
        return make_future(self._promise, lambda value: resolve(self._resolve(value)))

    def result(self, timeout: float | None = None) -> R:
        """Return the value, as ``get`` does. Raises ``TimeoutError`` after ``timeout`` seconds, or
        the error of the call.
        """
        return self.get(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error that ``get`` would raise, or ``None``."""
        try:
            self.get(timeout)
        except BaseException as error:
            if self._outcome is None or self._outcome[1] is not error:
                raise
            return error
        return None

    def done(self) -> bool:
        """Whether the answer has come."""
        return self._promise.is_set


def value_of_outcome(outcome: _Outcome[R]) -> R:
    """Return the value of an outcome, or raise its error."""
    value, error = outcome
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def make_future(promise: Promise[Any], resolve: Callable[[Any], R]) -> Future[R]:
    """Return a future that applies ``resolve`` to the promise's value when it is first asked
    for."""
    future: Future[R] = object.__new__(Future)
    fill_future(future, promise, resolve)
    return future


def promise_of(future: Future[Any]) -> Promise[Any]:
    """Return the promise that is set when the answer of ``future`` has come."""
    return future._promise


def fill_future(future: Future[R], promise: Promise[Any], resolve: Callable[[Any], R]) -> None:
    future._promise = promise
    future._resolve = resolve
    future._lock = threading.Lock()
    future._outcome = None


def _record_wait(key: Hashable, actor: Running, promise: Promise[Any]) -> None:
    """Record that an actor waits, so that a ring of actors that wait for each other is found."""
    waits[key] = Wait(actor, promise)
    if process.is_bootstrapped():
        process.current().rings.wake()


def _has_more_to_do(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether other callbacks are ready to run on the loop; true if the loop does not tell."""
    return bool(getattr(loop, "_ready", True))


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def soon(loop: asyncio.AbstractEventLoop, action: Callable[..., object], *args: Any) -> None:
    """Schedule ``action`` on ``loop``; a closed loop ignores it. Any thread may call this."""
    try:
        loop.call_soon_threadsafe(action, *args)
    except RuntimeError:
        pass  # The loop that waited has been closed, and its waiters with it.


def _is_cell_alone(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop is a notebook's and has no tasks of the user but the current one."""
    if "ipykernel" not in sys.modules:
        return False
    installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
    current = asyncio.current_task(loop)
    for task in asyncio.all_tasks(loop):
        code = getattr(task.get_coro(), "cr_code", None)
        is_kernels = code is None or code.co_filename.startswith((*installed, _OWN_FOLDER))
        if task is not current and not is_kernels:
            return False
    return True
