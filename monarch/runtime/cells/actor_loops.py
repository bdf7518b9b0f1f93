"""The asyncio loops of a process's async actors: one for each, so that no actor can delay another.

The first actor uses the loop of the process's main thread, if there is one; each of the others gets
a thread. A loop uses no descriptor as long as its actor opens none: there may be thousands of
loops.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from monarch.config import settings
from monarch.net.cork import flush, sent_one
from monarch.net.io_loop import IoLoop
from monarch.net.lent_selector import LentSelector
from monarch.net.poller import WakeUp, new_wake_up


class ActorLoop(NamedTuple):
    """A loop for one actor. ``release`` is called on the loop when the actor has ended."""

    loop: asyncio.AbstractEventLoop
    release: Callable[[], None]


class ActorLoops:
    """Gives each actor a loop of its own. From any thread."""

    def __init__(self) -> None:
        self._main: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        #: Whether an actor runs on the loop of the main thread.
        self.is_main_taken = False

    def use_main(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the loop that the main thread runs."""
        self._main = loop

    def take(self, name: str, io: IoLoop | None) -> ActorLoop:
        """Return an asyncio loop for an actor called ``name``.

        The first actor gets the main thread's loop, if there is one; others get a thread of their
        own. A thread with nothing to do polls in the place of ``io``.
        """
        with self._lock:
            if self._main is not None and not self.is_main_taken:
                self.is_main_taken = True
                return ActorLoop(self._main, self._give_main_back)
        loop = _QuietLoop(io)
        threading.Thread(target=_run, args=(loop,), name=name, daemon=True).start()
        return ActorLoop(loop, loop.stop)

    def _give_main_back(self) -> None:
        self.is_main_taken = False


class _QuietLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that is woken without a pipe to itself."""

    _selector: _QuietSelector

    def __init__(self, io: IoLoop | None) -> None:
        super().__init__(_QuietSelector(io))

    # The base class does this with a pair of sockets.

    def _make_self_pipe(self) -> None:
        pass

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        selector = self._selector
        if selector is not None:  # The loop has been closed meanwhile.
            selector.wake()


class _QuietSelector(selectors.BaseSelector):
    """The selector of an actor's asyncio loop.

    Until the actor opens a descriptor, the selector waits on a lock, or polls as the guest of an
    I/O loop. Afterwards it waits in the system's poller.
    """

    def __init__(self, io: IoLoop | None) -> None:
        self._io = io
        self._is_woken = False
        #: True while it polls as the guest of the I/O loop.
        self._is_serving = False
        #: A wait acquires this lock; `wake` releases it.
        self._gate = threading.Lock()
        self._gate.acquire()
        #: The poller, and what wakes it; None as long as the actor has opened no descriptor.
        self._poll: selectors.DefaultSelector | None = None
        self._wake_up: WakeUp | None = None
        self._wake_lock = threading.Lock()

    def wake(self) -> None:
        """End the present wait, or the next one. From any thread."""
        self._is_woken = True
        with self._wake_lock:
            if self._wake_up is not None:
                self._wake_up.set()
                return
            if self._gate.locked():
                self._gate.release()
        if self._is_serving and self._io is not None:
            self._io.nudge()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._poll is not None:
            events = self._poll.select(timeout)
            return [
                event for event in events if event[0].fileobj is not self._wake_up or self._heard()
            ]
        if timeout is None or timeout > 0:
            self._wait(timeout)
        self._is_woken = False
        self._gate.acquire(blocking=False)
        return []

    def _wait(self, timeout: float | None) -> None:
        flush()
        until = None if timeout is None else time.monotonic() + timeout
        if self._io is not None:
            self._is_serving = True
            self._io.serve(lambda: self._is_woken, timeout, is_eager=sent_one())
            self._is_serving = False
        if self._is_woken:
            return
        if until is None:
            self._gate.acquire()
        else:
            self._gate.acquire(timeout=max(0.0, until - time.monotonic()))

    def _heard(self) -> bool:
        assert self._wake_up is not None
        self._wake_up.clear()
        return False

    def _opened(self) -> selectors.DefaultSelector:
        if self._poll is None:
            self._poll = selectors.DefaultSelector() if self._io is None else LentSelector(self._io)
            wake_up = new_wake_up()
            wake_up.set()
            with self._wake_lock:
                self._wake_up = wake_up
            self._poll.register(wake_up, selectors.EVENT_READ)
        return self._poll

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._opened().register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._opened().unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._opened().modify(fileobj, events, data)

    def get_map(self) -> Any:
        return {} if self._poll is None else self._poll.get_map()

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        if self._poll is None:
            raise KeyError(f"{fileobj!r} is not registered")
        return self._poll.get_key(fileobj)

    def close(self) -> None:
        with self._wake_lock:
            wake_up, self._wake_up = self._wake_up, None
        if self._poll is not None:
            self._poll.close()
        if wake_up is not None:
            wake_up.close()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(_wind_up())
    finally:
        loop.close()


async def _wind_up() -> None:
    """Cancel everything that the actor has left running on its loop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=settings().cleanup_timeout_seconds)
    await asyncio.get_running_loop().shutdown_asyncgens()
