"""Fold the answers of a mesh into one value, as they arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from monarch.actor.endpoint import Endpoint
from monarch.actor.future import Future, promise_of
from monarch.actor.gather import gather

A = TypeVar("A")


class Accumulator(Generic[A]):
    """``combine(so_far, answer)`` over the answers of ``endpoint``, from ``identity``."""

    def __init__(
        self, endpoint: Endpoint[..., Any], identity: A, combine: Callable[[A, Any], A]
    ) -> None:
        self._endpoint = endpoint
        self._identity = identity
        self._combine = combine

    def accumulate(self, *args: Any, **kwargs: Any) -> Future[A]:
        """Call all members; the fold of their answers in order of arrival."""
        futures = list(self._endpoint.stream(*args, **kwargs))
        done = gather(list(map(promise_of, futures)), lambda answer: None)

        def fold(_: None) -> A:
            value = self._identity
            for future in futures:
                value = self._combine(value, future.get())
            return value

        return done.then(fold)
