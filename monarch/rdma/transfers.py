"""Work of a transfer: begun now, on this thread or another, and waited for later."""

from __future__ import annotations

import contextvars
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from monarch.actor.future import Future, make_future
from monarch.rdma.ways.choice import Ways
from monarch.runtime.promise import Promise

T = TypeVar("T")

_HERE = os.path.dirname(__file__) + os.sep


def start(
    way: Ways, work: Callable[[Ways], T], *, is_quick: bool = False, is_waiting: bool = False
) -> Future[T]:
    """Have ``work`` done on a thread of the workers; at once, on this one, if it is quick.

    Work that waits for others' doings, and not only for bytes, gets a thread of its own: the
    workers are few, and transfers would wait with it.
    """
    promise: Promise[tuple[T | None, BaseException | None]] = Promise()

    line = "" if is_quick else _users_line()

    def run() -> None:
        try:
            promise.set((work(way), None))
        except BaseException as error:
            _note(error, line or _users_line())
            promise.set((None, error))

    if is_quick:
        run()
    else:
        # Futures and requests made by it are the running actor's.
        context = contextvars.copy_context()
        if is_waiting:
            threading.Thread(
                target=context.run, args=(run,), name="monarch-rdma", daemon=True
            ).start()
        else:
            way.workers.submit(lambda: context.run(run))
    return make_future(promise, _outcome)


def _outcome(found: tuple[T | None, BaseException | None]) -> T:
    value, error = found
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def _note(error: BaseException, line: str) -> None:
    """Notes where the transfer was begun: the traceback is of the thread that did it, and of the
    one that waits."""
    if sys.version_info >= (3, 11):
        error.add_note(f"The transfer was begun at {line}")


def _users_line() -> str:
    """Where in the program, outside of this package, this is called from."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"
