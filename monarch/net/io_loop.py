"""The one thread of a process that waits for input.

Sockets, file descriptors, timers and calls handed over from other threads all end here, in
order of arrival. Callbacks must not block: whatever takes time goes to a thread of its own.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Union

import zmq

__all__ = ["IoLoop", "Timer"]

Source = Union[int, "zmq.Socket[bytes]"]

_log = logging.getLogger("monarch.net")


class Timer:
    """A call that is due at ``when`` on the loop's clock; ``cancel`` calls it off."""

    __slots__ = ("action", "when")

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class IoLoop:
    """Runs callbacks on its thread: when a source is readable, when time is up, when asked."""

    def __init__(self, name: str = "monarch-io") -> None:
        self._poller = zmq.Poller()
        self._readers: dict[Source, Callable[[], object]] = {}
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._tie = itertools.count()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wake_lock = threading.Lock()
        self._has_ended = False
        self._poller.register(self._wake, zmq.POLLIN)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_current(self) -> bool:
        """Whether the caller runs on the loop's own thread."""
        return threading.current_thread() is self._thread

    def time(self) -> float:
        return time.monotonic()

    def call_soon(self, action: Callable[[], None]) -> None:
        """Run ``action`` on the loop, in order of the calls. From any thread.

        Once the loop has ended, it is dropped.
        """
        self._soon.append(action)
        if not self.is_current():
            with self._wake_lock:
                # The number of a closed descriptor may belong to somebody else by now.
                if not self._has_ended:
                    os.eventfd_write(self._wake, 1)

    def call_later(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Run ``action`` on the loop after ``seconds``. From any thread."""
        timer = Timer(self.time() + seconds, action)
        self.call_soon(lambda: heapq.heappush(self._timers, (timer.when, next(self._tie), timer)))
        return timer

    def add_reader(self, source: Source, ready: Callable[[], object]) -> None:
        """Call ``ready`` whenever ``source`` can be read. On the loop only."""
        self._readers[source] = ready
        self._poller.register(source, zmq.POLLIN)

    def remove_reader(self, source: Source) -> None:
        """Stop watching ``source``; unknown ones are fine. On the loop only."""
        if self._readers.pop(source, None) is not None:
            self._poller.unregister(source)

    def run_on_loop(self, action: Callable[[], Any], timeout: float | None = None) -> Any:
        """Run ``action`` on the loop and return its result. Blocks other threads only."""
        if self.is_current():
            return action()
        done = threading.Event()
        result: list[Any] = [None, None]

        def run() -> None:
            try:
                result[0] = action()
            except BaseException as error:
                result[1] = error
            done.set()

        self.call_soon(run)
        if not self._wait(done, timeout):
            raise TimeoutError("the I/O thread did not answer")
        if result[1] is not None:
            raise result[1]
        return result[0]

    def _wait(self, done: threading.Event, timeout: float | None) -> bool:
        if self._has_ended and not done.is_set():
            raise RuntimeError("the I/O loop has ended")
        return done.wait(timeout)

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread after what was handed over so far. Idempotent."""
        self.call_soon(self._set_stopping)
        if self._thread.is_alive() and not self.is_current():
            self._thread.join(timeout)

    def _set_stopping(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        while not self._stopping:
            for source, _ in self._poller.poll(self._timeout_ms()):
                if source == self._wake:
                    os.eventfd_read(self._wake)
                elif (ready := self._readers.get(source)) is not None:
                    self._guard(ready)
            self._run_soon()
            self._run_timers()
        with self._wake_lock:
            self._has_ended = True
            os.close(self._wake)
        # Whoever handed something over at the last moment may wait for it.
        self._run_soon()

    def _timeout_ms(self) -> int | None:
        if self._soon:
            return 0
        if not self._timers:
            return None
        return max(0, int((self._timers[0][0] - self.time()) * 1000) + 1)

    def _run_soon(self) -> None:
        for _ in range(len(self._soon)):
            self._guard(self._soon.popleft())

    def _run_timers(self) -> None:
        now = self.time()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.action is not None:
                self._guard(timer.action)

    def _guard(self, action: Callable[[], object]) -> None:
        # One broken callback must not end the process's only receiver.
        try:
            action()
        except Exception:
            _log.exception("an I/O callback failed")
