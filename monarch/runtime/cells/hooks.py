"""The hooks of an actor: how they are run, for how long, and what their errors mean."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from monarch import runtime
from monarch.config import settings
from monarch.errors import MeshFailure, format_remote
from monarch.runtime.cells.undelivered import HOOK, Undelivered, wants_undelivered
from monarch.runtime.context import ActorRecord, Running, running

_log = logging.getLogger("monarch.actor")

_WATCHDOG_SECONDS = 0.2
_RUNTIME = os.path.dirname(os.path.abspath(runtime.__file__))

Settle = Callable[[Awaitable[Any], "float | None"], Awaitable[Any]]


class Hooks:
    """Runs the hooks of one actor; ``settle`` awaits hooks that are coroutines."""

    def __init__(self, record: ActorRecord, settle: Settle) -> None:
        self._record = record
        self._settle = settle

    def quiesce(self, instance: Any) -> None:
        """Run the actor's ``__quiesce__``, if it has one, before it stops at a fence or halt.

        The hook waits until the actor's own threads have finished their work. It must not raise.
        """
        hook = getattr(instance, "__quiesce__", None)
        if hook is not None:
            hook()

    async def reloaded(self, instance: Any, change: Any) -> BaseException | None:
        """Notify an actor of new code; return the error of its hook, or None."""
        try:
            await self._call(instance, "__reload__", change)
        except BaseException as error:
            error.__traceback__ = users_part(error)
            return error
        return None

    async def supervise(self, instance: Any, failure: MeshFailure) -> tuple[bool, str]:
        """Return whether the actor handles a failure of something that it owns, and a hook's error.

        The error is "" if ``__supervise__`` did not raise. If it raised, the failure is not
        handled.
        """
        try:
            return bool(await self._call(instance, "__supervise__", failure)), ""
        except BaseException as error:
            return False, self._story("__supervise__", error)

    async def undelivered(self, instance: Any, message: Undelivered) -> str:
        """Ask the actor about a message that could not be delivered, if it has a hook for that.

        Returns why the actor fails because of it; empty if it does not fail.
        """
        if not wants_undelivered(instance):
            return ""
        try:
            handled = await self._call(instance, HOOK, message)
        except Exception as error:
            return self._story(HOOK, error)
        return "" if handled else f"It did not handle that {message}"

    async def clean_up(
        self,
        instance: Any,
        error: BaseException | None,
        conclude: Callable[[str], None],
        give_up: Callable[[], None],
    ) -> None:
        """Run the actor's ``__cleanup__``, then call ``conclude`` with the reason of its failure,
        "" if none.

        It may take ``cleanup_timeout_seconds``. If it still blocks its thread then, ``conclude`` is
        called on another thread, followed by ``give_up``, which is called only in that case.
        """
        seconds = settings().cleanup_timeout_seconds
        once = threading.Lock()

        def end(trouble: str) -> None:
            if once.acquire(blocking=False):
                conclude(trouble)

        def late() -> None:
            end(f"__cleanup__ of {self._record.title} had not returned after {seconds:g} s.")
            give_up()

        watchdog = threading.Timer(seconds + _WATCHDOG_SECONDS, late)
        watchdog.daemon = True
        watchdog.start()
        trouble = ""
        try:
            await self._call(instance, "__cleanup__", error, seconds)
        except asyncio.TimeoutError:
            trouble = f"__cleanup__ of {self._record.title} was cut off after {seconds:g} s."
        except BaseException as raised:
            trouble = self._story("__cleanup__", raised)
        watchdog.cancel()
        end(trouble)

    async def _call(
        self, instance: Any, name: str, argument: Any, seconds: float | None = None
    ) -> Any:
        hook = getattr(instance, name, None)
        if hook is None:
            return None
        record = self._record
        running.set(Running(record, instance, record.rank, record.labels, record.sizes))
        result = hook(argument)
        return await self._settle(result, seconds) if inspect.iscoroutine(result) else result

    def _story(self, name: str, error: BaseException) -> str:
        error.__traceback__ = users_part(error)
        return f"{name} of {self._record.title} raised.\n{format_remote(error)}"


def users_part(error: BaseException) -> Any:
    """Return the traceback without our own frames above the user's."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_RUNTIME):
        traceback = traceback.tb_next
    return traceback or error.__traceback__
