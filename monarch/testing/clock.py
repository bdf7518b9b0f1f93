"""A clock that only moves when the test says so, and the loops that use it."""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections.abc import Callable
from typing import Any

from monarch.net.io_loop import IoLoop
from monarch.net.loop import Timer

_SETTLE_SECONDS = 5.0
"""Real time to wait for loops that are busy, before the clock moves on without them."""


class VirtualClock:
    """Time for heartbeats, timeouts of the runtime, and ``asyncio.sleep`` in async actors.

    ``time.sleep`` and ``Future.get(timeout=...)`` use the real clock: threads wait there.
    """

    def __init__(self) -> None:
        self._now = 1000.0
        self._lock = threading.Lock()
        #: A heap of the times at which timers fall due.
        self._due: list[float] = []
        self._loops: list[VirtualIoLoop | VirtualEventLoop] = []

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass: run all timers that fall due, in order.

        Before each step the messages that were sent are delivered, so that a sent heartbeat counts
        as received. Actors that compute are not waited for.
        """
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds}")
        end = self._now + seconds
        self.settle()
        while (due := self._next_due(end)) is not None:
            self._now = max(self._now, due)
            self.settle()
        self._now = end
        self.settle()

    def settle(self) -> None:
        """Wait until no loop has anything left to do at the current time."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while time.monotonic() < deadline:
            old_runs = self._num_runs()
            barriers = self._pass_all()
            if self._num_runs() - old_runs == barriers:
                return

    def _next_due(self, end: float) -> float | None:
        with self._lock:
            while self._due and self._due[0] <= self._now:
                heapq.heappop(self._due)
            return self._due[0] if self._due and self._due[0] <= end else None

    def _num_runs(self) -> int:
        with self._lock:
            return sum(loop.num_runs for loop in self._loops)

    def _pass_all(self) -> int:
        """Wake each loop to run what is due at the current time; return how many did."""
        with self._lock:
            # I/O loops before event loops, and all of them twice, because timers run after what
            # was handed over.
            loops = sorted(self._loops, key=lambda loop: isinstance(loop, VirtualEventLoop))
        return sum(loop.pass_by(_SETTLE_SECONDS) for loop in [*loops, *loops])

    def note(self, when: float) -> None:
        """Note that a timer falls due at ``when``."""
        with self._lock:
            heapq.heappush(self._due, when)

    def io_loop(self) -> VirtualIoLoop:
        """Make a loop for a node that uses this clock."""
        loop = VirtualIoLoop(self)
        with self._lock:
            self._loops.append(loop)
        return loop

    def event_loop(self) -> VirtualEventLoop:
        """Make an asyncio loop that uses this clock."""
        loop = VirtualEventLoop(self)
        with self._lock:
            self._loops.append(loop)
        return loop

    def forget(self, loop: VirtualIoLoop) -> None:
        """Remove a loop that has ended."""
        with self._lock:
            if loop in self._loops:
                self._loops.remove(loop)


class VirtualIoLoop(IoLoop):
    """The real loop, with timers on a virtual clock."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock
        self.num_runs = 0

    def time(self) -> float:
        return self._clock.time()

    def call_later(self, seconds: float, action: Callable[[], None]) -> Timer:
        timer = super().call_later(seconds, action)
        self._clock.note(timer.when)
        return timer

    def pass_by(self, timeout: float) -> bool:
        """Wait until the loop has run everything handed to it.

        Returns False if the loop has ended, or has not done so within ``timeout`` seconds.
        """
        try:
            self.run_on_loop(lambda: None, timeout)
        except (TimeoutError, RuntimeError):
            return False
        return True

    def stop(self, timeout: float = 5.0) -> None:
        self._clock.forget(self)
        super().stop(timeout)

    def timeout(self) -> float | None:
        # Real time means nothing to our timers: the thread that moves the clock wakes us.
        return 0.0 if self._soon else None

    def _guard(self, action: Callable[[], object]) -> None:
        self.num_runs += 1
        super()._guard(action)


class VirtualEventLoop(asyncio.SelectorEventLoop):
    """The real asyncio loop, with ``call_later`` and ``sleep`` on a virtual clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.num_runs = 0
        super().__init__()

    def time(self) -> float:
        return self._clock.time()

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        self._clock.note(when)
        return super().call_at(when, callback, *args, context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        handle = super().call_soon(callback, *args, context=context)
        self.num_runs += 1
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        handle = super().call_soon_threadsafe(callback, *args, context=context)
        self.num_runs += 1
        return handle

    def pass_by(self, timeout: float) -> bool:
        """Wait until the loop has run everything handed to it; return False if it is closed."""
        passed = threading.Event()
        try:
            self.call_soon_threadsafe(passed.set)
        except RuntimeError:
            return False
        passed.wait(timeout)
        return True
