"""A host of a host mesh."""

from __future__ import annotations

from typing import Any, NamedTuple

from monarch.runtime.client_agent import ClientAgent
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.wire.address import ProcAddress


class Host(NamedTuple):
    """A machine: its host agent, and the URL that we attached to ("" for a local agent)."""

    address: ProcAddress
    url: str = ""


def link(agent: ProcAgent, host: Host) -> Any:
    """Return our attachment to a host; ``None`` for a local host, which needs none."""
    return agent.link(host.url) if host.url and isinstance(agent, ClientAgent) else None
