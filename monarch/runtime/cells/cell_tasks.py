"""Endpoints of an actor that run beside each other, each as a task of the asyncio loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from monarch.wire.message import Call

__all__ = ["CellTasks"]


class CellTasks:
    """``refuse`` answers the call of a task that was cancelled."""

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
        """End all but the one that asks for it."""
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
        endpoint.close()  # It may have been cancelled before it began.
