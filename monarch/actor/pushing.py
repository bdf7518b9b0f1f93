"""Pushes of a workspace that a program starts, each on a thread of its own."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

from monarch.actor.future import Future, fill_future, value_of_outcome
from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.session import session_of
from monarch.wire.address import ProcAddress
from monarch_sync import SyncReport, Workspace

MODES = ("auto", "patch", "respawn", "off")
"""What a push does about live code: "patch" changes it in place, "respawn" gives procs new
processes, "auto" does the first where it is possible and else the second, "off" neither."""


class PushFuture(Future[SyncReport], Coroutine[Any, Any, SyncReport]):
    """A push in progress.

    It is a coroutine too, since Monarch's ``sync_workspace`` returns one: ``asyncio.run`` and
    ``asyncio.gather`` accept it.
    """

    _steps: Generator[Any, None, SyncReport] | None

    def send(self, value: Any) -> Any:
        return self._go_on(lambda steps: steps.send(value))

    def throw(self, *error: Any) -> Any:
        return self._go_on(lambda steps: steps.throw(*error))

    def close(self) -> None:
        """Stop waiting; the push continues."""
        if self._steps is not None:
            self._steps.close()

    def _go_on(self, step: Callable[[Generator[Any, None, SyncReport]], Any]) -> Any:
        if self._steps is None:
            self._steps = self.__await__()
        try:
            return step(self._steps)
        except BaseException:
            self._steps = None  # The wait has ended; a later task may wait again.
            raise


def push(
    hosts: Sequence[ProcAddress],
    workspace: Workspace,
    mode: str,
    best_effort: bool,
    env: bool,
    allow_empty: bool,
) -> PushFuture:
    """Push ``workspace`` to ``hosts``, and its code into the procs that this program runs there.

    ``env`` also installs packages of the lock file that hosts lack. Raises ``ValueError`` for an
    unknown ``mode``, ``TypeError`` if ``workspace`` is not a ``Workspace``.
    """
    if mode not in MODES:
        raise ValueError(f"reload is one of {', '.join(MODES)}, not {mode!r}")
    if not isinstance(workspace, Workspace):
        raise TypeError(f"a workspace is Workspace(dirs=[...]), not {workspace!r}")
    workspace.check()
    agent = process.current()
    if isinstance(agent, ClientAgent):
        agent.relink(host.uid for host in hosts)
    done: Promise[tuple[SyncReport | None, Exception | None]] = Promise()

    def run() -> None:
        try:
            report = session_of(agent).push(
                hosts, workspace, mode, best_effort=best_effort, env=env, allow_empty=allow_empty
            )
            done.set((report, None))
        except Exception as error:
            done.set((None, error))

    # A daemon: a Ctrl-C in the middle of a push ends the program at once. The context says which
    # actor pushes, so that the push does not wait for it.
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name="monarch-push", daemon=True).start()
    future: PushFuture = object.__new__(PushFuture)
    fill_future(future, done, _report)
    future._steps = None
    return future


def _report(outcome: tuple[SyncReport | None, Exception | None]) -> SyncReport:
    report = value_of_outcome(outcome)
    report.owe()
    return report
