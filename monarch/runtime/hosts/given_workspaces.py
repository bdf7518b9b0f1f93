"""The workspaces that procs of a host have for themselves."""

from __future__ import annotations

import os
import time

from monarch.config import settings
from monarch.runtime.hosts.host_agent import HostAgent
from monarch.wire.message import Inspect, InspectProc


def given_workspaces(agent: HostAgent) -> list[str]:
    """Return the workspaces of the procs on a host: set by ``env`` at the spawn, or by their
    bootstrap.

    Waits until their bootstraps have run, up to ``reload_timeout_seconds``; a slower bootstrap is
    skipped. A value that this process's environment has too does not count as set by a bootstrap.
    """
    node, asked = agent.node, []
    found: dict[str, None] = {}
    deadline = time.monotonic() + settings().reload_timeout_seconds
    # Orders to spawn are messages to ourselves: what was ordered so far is known after this one.
    node.ask(node.address, Inspect()).wait(_left(deadline))
    for proc in list(agent.procs.values()):
        if named := proc.spec.env.get("WORKSPACE_DIR"):
            found[named] = None
        if proc.setup:
            address = node.address_of(proc.uid)
            asked.append(node.ask(address, InspectProc()))
    for answer in asked:
        if answer.wait(_left(deadline)) and not answer.value.error:
            named = answer.value.answer.workspace
            if named and named != os.environ.get("WORKSPACE_DIR"):
                found[named] = None
    return list(found)


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
