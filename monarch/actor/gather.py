"""One future for many control requests, and an end to waiting for one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from monarch.actor.future import Future, make_future
from monarch.net.loop import Loop
from monarch.runtime.answers import Response
from monarch.runtime.promise import Promise

T = TypeVar("T")


def within(loop: Loop, outcome: Promise[Response], seconds: float, error: str) -> Promise[Response]:
    """``outcome``, which is ``error`` when it is not there in time."""
    timer = loop.call_later(seconds, lambda: outcome.set(Response({}, error)))
    outcome.on_set(timer.cancel)
    return outcome


def gather(promises: Sequence[Promise[T]], check: Callable[[T], Any]) -> Future[None]:
    """Done when all ``promises`` are; ``check`` is applied to each value, and may raise."""
    done: Promise[None] = Promise()
    left = [len(promises)]
    lock = threading.Lock()

    def count() -> None:
        with lock:
            left[0] -= 1
            is_last = left[0] == 0
        if is_last:
            done.set(None)

    for promise in promises:
        promise.on_set(count)
    if not promises:
        done.set(None)

    def resolve(_: None) -> None:
        for promise in promises:
            check(promise.value)

    return make_future(done, resolve)
