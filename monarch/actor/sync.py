"""``sync_workspace``, for meshes of hosts and procs alike."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent
from monarch.runtime.workspace.session import session_of
from monarch.wire.address import ProcAddress, Uid
from monarch_sync import SyncReport, Workspace

__all__ = ["sync_hosts", "sync_procs"]

T = TypeVar("T")

MODES = ("auto", "patch", "respawn", "off")
"""What a push does about live code: change it in place where that can be and give the other procs
new processes; or only the one; or only the other; or neither."""


async def sync_procs(
    procs: Sequence[ProcAddress],
    workspace: Workspace,
    mode: str,
    best_effort: bool = False,
    env: bool = False,
) -> SyncReport:
    """Push ``workspace`` to the hosts that ``procs`` are on."""
    hosts: dict[Uid, ProcAddress] = {}
    for proc in procs:
        host = ProcAddress(proc.host_uid, proc.host_urls, proc.machine)
        hosts.setdefault(proc.host_uid, host)
    return await sync_hosts(list(hosts.values()), workspace, mode, best_effort, env)


async def sync_hosts(
    hosts: Sequence[ProcAddress],
    workspace: Workspace,
    mode: str,
    best_effort: bool = False,
    env: bool = False,
) -> SyncReport:
    """Push ``workspace`` to ``hosts``, and its code into what this program runs there.

    ``env`` brings the packages that its lock file asks for and hosts lack.
    """
    if mode not in MODES:
        raise ValueError(f"reload is one of {', '.join(MODES)}, not {mode!r}")
    agent = process.current()
    if isinstance(agent, ClientAgent):
        agent.relink(host.uid for host in hosts)
    return await in_thread(
        lambda: session_of(agent).push(hosts, workspace, mode, best_effort=best_effort, env=env)
    )


async def in_thread(work: Callable[[], T]) -> T:
    """Run what blocks on a thread of its own.

    Unlike ``asyncio.to_thread``'s, it does not keep a loop from closing: a Ctrl-C in the middle
    of a push ends the program at once.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = context.run(work)
        except Exception as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # The loop has been closed meanwhile.
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="monarch-push", daemon=True).start()
    return await done
