"""The processes of groups and of the lighthouse: what they begin with, and their end."""

from __future__ import annotations

import asyncio

from monarch.actor import ProcMesh
from monarch.config import configured

__all__ = ["ENVIRONMENT", "PRELOAD", "end_procs"]

PRELOAD = ("monarch_recipes.replicas.preload",)
ENVIRONMENT = {"RUST_LOG": "warn"}
_STOP_SECONDS = 5.0


async def end_procs(*meshes: ProcMesh | None) -> None:
    """Kill procs, and wait a little for that: a host that is gone does not answer."""
    ends = []
    # What is worth saving has been saved, and what hangs has no last words.
    with configured(stop_timeout_seconds=0.0):
        for mesh in meshes:
            if mesh is not None:
                ends.append(mesh.stop().as_asyncio())
    if ends:
        await asyncio.wait(ends, timeout=_STOP_SECONDS)
    for one in ends:
        if one.done() and not one.cancelled():
            one.exception()
