"""``sync_workspace``, for meshes of hosts and procs alike."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from monarch.runtime import process
from monarch.wire.address import ProcAddress, Uid
from monarch_sync import SyncReport, Workspace

__all__ = ["sync_hosts", "sync_procs"]


async def sync_procs(procs: Sequence[ProcAddress], workspace: Workspace, mode: str) -> SyncReport:
    """Push ``workspace`` to the hosts that ``procs`` are on."""
    hosts: dict[Uid, ProcAddress] = {}
    for proc in procs:
        host = ProcAddress(proc.host_uid, proc.host_urls, proc.machine)
        hosts.setdefault(proc.host_uid, host)
    return await sync_hosts(list(hosts.values()), workspace, mode)


async def sync_hosts(hosts: Sequence[ProcAddress], workspace: Workspace, mode: str) -> SyncReport:
    """Push ``workspace`` to ``hosts``, and its code into what this program runs there."""
    session = process.current().workspace()
    return await asyncio.to_thread(session.push, hosts, workspace, mode)
