"""The work of an actor besides messages, and its endpoints that run as tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from monarch.core.mailbox import Delivery, Fence, Halt, Lift, Resume
from monarch.errors import MeshFailure, SupervisionError
from monarch.runtime.cells.undelivered import Undelivered
from monarch.wire.codec import Envelope
from monarch.wire.message import Call, Message


class Judge(NamedTuple):
    """Work: ask the actor's ``__supervise__`` about ``failure``.

    ``verdict`` is then called with whether the actor handles it, and with the hook's error, or "".
    """

    failure: MeshFailure
    verdict: Callable[[bool, str], None]


class Reloaded(NamedTuple):
    """Work: notify the instance that code was patched; pass on the error of its hook, if any."""

    change: Any
    heard: Callable[[BaseException | None], None]


class Fail(NamedTuple):
    """Work: fail, because of ``cause``, or of an error of the actor's own, or of both."""

    cause: MeshFailure | None
    reason: str

    @property
    def error(self) -> Exception:
        """The error that the actor's hooks get."""
        if self.cause is None:
            return RuntimeError(self.reason)
        return SupervisionError(self.cause.report(), failure=self.cause)


Work = Envelope[Message] | Judge | Reloaded | Fail | Undelivered

Event = Delivery | Fence | Lift | Halt | Resume
"""An entry of an actor's inbox; the work is in the deliveries."""


class CellTasks:
    """The running tasks of concurrent endpoints. ``refuse`` answers the call of a cancelled
    task."""

    def __init__(self, refuse: Callable[[Call], None]) -> None:
        self._refuse = refuse
        self._tasks: dict[asyncio.Task[None], tuple[Call, Coroutine[Any, Any, Any]]] = {}

    @property
    def has_any(self) -> bool:
        return bool(self._tasks)

    def start(
        self,
        call: Call,
        endpoint: Coroutine[Any, Any, Any],
        completion: Coroutine[Any, Any, None],
    ) -> None:
        """Run ``completion``, which awaits ``endpoint`` and answers the call."""
        task = asyncio.get_running_loop().create_task(completion)
        self._tasks[task] = call, endpoint
        task.add_done_callback(self._done)

    async def cancel(self) -> None:
        """Cancel all tasks of this actor, except the task that calls this."""
        current = asyncio.current_task() if self._tasks else None
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        call, endpoint = self._tasks.pop(task)
        if task.cancelled():
            self._refuse(call)
        endpoint.close()  # The task may have been cancelled before it began.
