"""Starts the work of a transfer, on this thread or another; a future waits for its end."""

from __future__ import annotations

import contextvars
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from monarch.actor.future import Future, make_future, value_of_outcome
from monarch.rdma.ways.choice import Ways
from monarch.runtime.promise import Promise

T = TypeVar("T")

_HERE = os.path.dirname(__file__) + os.sep


def start(
    way: Ways, work: Callable[[Ways], T], *, is_quick: bool = False, is_waiting: bool = False
) -> Future[T]:
    """Run ``work`` on a thread of the pool, or on this thread if it is quick; return its future.

    Work that waits for other processes (``is_waiting``) gets a thread of its own: it would occupy
    the small pool for long.
    """
    promise: Promise[tuple[T | None, BaseException | None]] = Promise()
    line = "" if is_quick else _users_line()

    def run() -> None:
        try:
            promise.set((work(way), None))
        except BaseException as error:
            if sys.version_info >= (3, 11):  # The traceback does not show that line.
                error.add_note(f"The transfer was begun at {line or _users_line()}")
            promise.set((None, error))

    if is_quick:
        run()
    else:
        # In the context of the running actor: the futures and requests of the work belong to it.
        context = contextvars.copy_context()
        if is_waiting:
            threading.Thread(
                target=context.run, args=(run,), name="monarch-rdma", daemon=True
            ).start()
        else:
            way.workers.submit(lambda: context.run(run))
    return make_future(promise, value_of_outcome)


def _users_line() -> str:
    """Return the file and line of the innermost caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"
