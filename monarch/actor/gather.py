"""One future for several answers: of control requests, or combined answers of a mesh."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from monarch.actor.endpoint import Endpoint
from monarch.actor.future import Future, make_future, promise_of
from monarch.net.loop import Loop
from monarch.runtime.answers import Response
from monarch.runtime.promise import Promise

A = TypeVar("A")

T = TypeVar("T")


def within(
    loop: Loop, outcome: Promise[Response[A]], seconds: float, error: str
) -> Promise[Response[A]]:
    """Return ``outcome``; it is set to ``error`` if it is not set within ``seconds``."""
    timer = loop.call_later(seconds, lambda: outcome.set(Response(None, error)))
    outcome.on_set(timer.cancel)
    return outcome


def gather(promises: Sequence[Promise[T]], check: Callable[[T], Any]) -> Future[None]:
    """Return a future that is done when all ``promises`` are; ``check`` gets each value, and may
    raise."""
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


class Accumulator(Generic[A]):
    """Combines the answers of ``endpoint``: ``combine(so_far, answer)``, starting with
    ``identity``."""

    def __init__(
        self, endpoint: Endpoint[..., Any], identity: A, combine: Callable[[A, Any], A]
    ) -> None:
        self._endpoint = endpoint
        self._identity = identity
        self._combine = combine

    def accumulate(self, *args: Any, **kwargs: Any) -> Future[A]:
        """Call all members; return a future of their combined answers, in order of arrival."""
        futures = list(self._endpoint.stream(*args, **kwargs))
        done = gather(list(map(promise_of, futures)), lambda answer: None)

        def fold(_: None) -> A:
            value = self._identity
            for future in futures:
                value = self._combine(value, future.get())
            return value

        return done.then(fold)
