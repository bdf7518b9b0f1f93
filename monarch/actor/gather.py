"""One future for many control requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from monarch.actor.future import Future, make_future
from monarch.runtime.promise import Promise

__all__ = ["gather"]

T = TypeVar("T")


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
