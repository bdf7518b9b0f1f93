"""A value that is set once, and the threads and callbacks that wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from monarch.net.guest import wait_until

T = TypeVar("T")


class Promise(Generic[T]):
    """A value that threads can wait for; lighter than ``concurrent.futures.Future``: one lock, no
    condition variable.

    A waiting thread blocks on a plain lock, so that Ctrl-C interrupts it at once.
    """

    __slots__ = ("__weakref__", "_callbacks", "_lock", "_value", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._value: T | None = None
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    def set(self, value: T) -> None:
        """Set the value and run the callbacks. A second value is ignored."""
        with self._lock:
            if self.is_set:
                return
            self._value = value
            self.is_set = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def on_set(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the value is set, on the thread that sets it; at once if it is set
        already."""
        with self._lock:
            if not self.is_set:
                self._callbacks.append(callback)
                return
        callback()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds for the value; return whether it is set."""
        if self.is_set:
            return True
        began = 0.0 if timeout is None else time.monotonic()
        wait_until(lambda: self.is_set, timeout, self.on_set)
        waiter = threading.Lock()
        waiter.acquire()
        self.on_set(waiter.release)
        if timeout is None:
            return waiter.acquire()
        return waiter.acquire(timeout=max(0.0, timeout - (time.monotonic() - began)))

    @property
    def value(self) -> T:
        """The value, which must be set."""
        assert self.is_set, "asked for a value that is not there yet"
        return self._value  # type: ignore[return-value]
