"""The two ways to run an actor: on a thread of its own, or on an asyncio loop of its own.

The mailbox belongs to whichever of the two runs the actor; others only put events into its inbox.
A sync actor's thread drives the cell's coroutines by hand: its endpoints never await, so each
coroutine runs through in one step, with no loop around.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from monarch.config import settings
from monarch.core.mailbox import Reached
from monarch.net.cork import flush
from monarch.net.guest import invite, wait_until
from monarch.runtime.cells.actor_cell import ActorCell, CellHost
from monarch.runtime.cells.actor_loops import ActorLoop
from monarch.runtime.cells.cell_work import Event, Fail, Judge
from monarch.runtime.context import ActorRecord
from monarch.runtime.promise import Promise
from monarch.runtime.waits import Wait
from monarch.wire.codec import Envelope
from monarch.wire.message import Call

_TURN_SECONDS = 0.005


class SyncCell(ActorCell):
    """An actor whose endpoints are plain functions: it has a thread of its own."""

    def __init__(self, record: ActorRecord, host: CellHost) -> None:
        super().__init__(record, host)
        #: Filled by any thread; emptied into the mailbox by the actor's own.
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        #: True while the actor has nothing to do.
        self._is_waiting = False
        name = f"actor {record.name} {record.rank}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def thread_id(self) -> int:
        return self._thread.ident or 0

    def wait_in_hand(self) -> Wait | None:
        return self._wait_by(self._thread.ident)

    @property
    def num_waiting(self) -> int:
        return len(self._mailbox) + self._inbox.qsize()

    def deliver(self, event: Event) -> None:
        self._inbox.put(event)
        # While the thread polls as a guest, it sees only what comes through the loop.
        if self._is_waiting and (loop := self._host.io_loop) is not None:
            loop.nudge()

    def _run(self) -> None:
        mailbox, inbox = self._mailbox, self._inbox
        invite(self._host.io_loop)
        while not self.is_ended:
            self._is_waiting = True
            if inbox.empty():
                wait_until(lambda: not inbox.empty())
            mailbox.feed(inbox.get())
            self._is_waiting = False
            while not self.is_ended:
                while not inbox.empty():
                    mailbox.feed(inbox.get())
                item = mailbox.next()
                if item is None:
                    break
                if isinstance(item, Reached):
                    self.hooks.quiesce(self.instance)
                    self._host.fence_reached(self, item)
                elif self._drive(self._perform(item.work)):
                    self._again(item)

    def _take(self) -> Event | None:
        try:
            return self._inbox.get_nowait()
        except queue.Empty:
            return None

    async def _wait(self, ends: list[Promise[Any]]) -> None:
        deadline = time.monotonic() + settings().cleanup_timeout_seconds
        for end in ends:
            end.wait(max(0.0, deadline - time.monotonic()))

    def _drive(self, work: Coroutine[Any, Any, bool]) -> bool:
        try:
            work.send(None)
        except StopIteration as end:
            return bool(end.value)
        raise RuntimeError("a sync actor's work awaited something")

    async def _settle(self, result: Awaitable[Any] | Any, seconds: float | None = None) -> Any:
        # Only hooks get here: an async __supervise__ on a sync actor has a loop for itself.
        async def wait() -> Any:
            return await asyncio.wait_for(result, seconds)

        return asyncio.run(wait())


class AsyncCell(ActorCell):
    """An actor whose endpoints are coroutines: it runs on an asyncio loop."""

    def __init__(self, record: ActorRecord, host: CellHost, actor_loop: ActorLoop) -> None:
        super().__init__(record, host)
        self._loop, self._release = actor_loop
        #: Filled by any thread; emptied into the mailbox by the main task.
        self._inbox: deque[Event] = deque()
        #: What the main task waits for while the mailbox is empty; else None.
        self._wake: asyncio.Future[None] | None = None
        #: True when the loop has been asked to wake the main task, and has not done so yet.
        self._is_scheduled = False
        #: True while the main task runs a call.
        self._is_calling = False
        #: Held while ``__supervise__`` runs: one failure after the other.
        self._judging = asyncio.Lock()
        #: The tasks that ask ``__supervise__``.
        self._judges: set[asyncio.Task[None]] = set()
        #: The failures whose task has not begun yet.
        self._unheard: deque[Judge] = deque()
        #: The task that runs the messages; None until the loop has started it.
        self._main: asyncio.Task[None] | None = None
        #: The thread of the loop; 0 until the loop has started the main task.
        self._thread = 0
        self._loop.call_soon_threadsafe(self._start)

    @property
    def thread_id(self) -> int:
        return self._thread

    @property
    def task(self) -> asyncio.Task[None] | None:
        return self._main

    def wait_in_hand(self) -> Wait | None:
        # A wait that blocks the thread delays the whole loop.
        return self._wait_by(self._main) or self._wait_by(self._thread)

    @property
    def num_waiting(self) -> int:
        return len(self._mailbox) + len(self._inbox)

    def deliver(self, event: Event) -> None:
        self._inbox.append(event)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._soon(self._awaken)

    def _soon(self, action: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(action, *args)
        except RuntimeError:
            pass  # The loop has ended, because the process ends.

    def _take(self) -> Event | None:
        try:
            return self._inbox.popleft()
        except IndexError:
            return None

    async def _wait(self, ends: list[Promise[Any]]) -> None:
        waiters = [_waiter(end, self._loop) for end in ends]
        if waiters:
            await asyncio.wait(waiters, timeout=settings().cleanup_timeout_seconds)

    def _start(self) -> None:
        self._thread = threading.get_ident()
        self._main = self._loop.create_task(self._live(), name=f"actor {self.record.name}")

    def _awaken(self) -> None:
        self._is_scheduled = False
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _live(self) -> None:
        try:
            await self._run()
            if self._judges:
                await asyncio.wait(self._judges, timeout=settings().cleanup_timeout_seconds)
        finally:
            self._release()

    async def _run(self) -> None:
        began = time.monotonic()
        while not self.is_ended:
            while self._unheard or time.monotonic() - began > _TURN_SECONDS:
                # If endpoints never wait, the actor's own tasks would not run, and it would not
                # hear of failures before its next message.
                await asyncio.sleep(0)
                began = time.monotonic()
            while self._inbox:
                self._mailbox.feed(self._inbox.popleft())
            item = self._mailbox.next()
            if item is None:
                flush()
                self._wake = self._loop.create_future()
                await self._wake
                self._wake = None
                began = time.monotonic()
            elif isinstance(item, Reached):
                self._host.fence_reached(self, item)
            else:
                work = item.work
                self._is_calling = type(work) is Envelope and type(work.message) is Call
                is_again = await self._perform(work)
                self._is_calling = False
                if is_again:
                    self._again(item)

    def judge(self, judge: Judge) -> None:
        # Beside the message in hand, which may wait for the very thing that has failed.
        self._unheard.append(judge)
        self._soon(self._start_judging, judge)

    def _start_judging(self, judge: Judge) -> None:
        task = self._loop.create_task(self._judge_in_turn(judge))
        self._judges.add(task)
        task.add_done_callback(self._judges.discard)

    async def _judge_in_turn(self, judge: Judge) -> None:
        self._unheard.popleft()
        async with self._judging:
            await self._judge(judge)
        if self._doom:
            reason, self._doom = self._doom, ""
            self.fail(Fail(None, reason))

    def fail(self, fail: Fail) -> None:
        self._soon(self._fail_now, fail)

    def _fail_now(self, fail: Fail) -> None:
        """Cancel the current message; its caller gets the failure as its answer."""
        if self.failure is None and not self.is_ended:
            self._mark_failed(fail.reason, fail.cause)
            self._cancel_call()
        super().fail(fail)

    def cut_off(self) -> None:
        super().cut_off()
        self._soon(self._cancel_call)

    def _cancel_call(self) -> None:
        if self._is_calling and not self.is_ending and self._main is not None:
            self._main.cancel()

    async def _settle(self, result: Awaitable[Any] | Any, seconds: float | None = None) -> Any:
        return await (result if seconds is None else asyncio.wait_for(result, seconds))


def _waiter(end: Promise[Any], loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    """Return a future of ``loop`` that is done once the promise is set."""
    waiter: asyncio.Future[None] = loop.create_future()

    def set_result() -> None:
        loop.call_soon_threadsafe(waiter.set_result, None)

    end.on_set(set_result)
    return waiter


def make_cell(record: ActorRecord, host: CellHost, *, is_async: bool) -> ActorCell:
    """Make the kind of cell that the class's endpoints need."""
    if is_async:
        return AsyncCell(record, host, host.actor_loop(f"actor {record.name} {record.rank}"))
    return SyncCell(record, host)
