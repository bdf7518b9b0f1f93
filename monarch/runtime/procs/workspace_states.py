"""Which state of a workspace each host has, as far as this process knows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from monarch.wire.address import Uid

__all__ = ["WorkspaceState", "WorkspaceStates"]


class WorkspaceState(NamedTuple):
    """``order`` counts the pushes that we know of; 0 is what a host told when we came to it."""

    order: int
    generation: int
    digest: str


class WorkspaceStates:
    """What hosts should have: the last push to any of a mesh is meant for all of it."""

    def __init__(self) -> None:
        self._by_host: dict[Uid, WorkspaceState] = {}
        self._order = 0

    def found(self, host: Uid, generation: int, digest: str) -> None:
        """A host says what it has. What was pushed to it stays what it should have."""
        known = self._by_host.get(host)
        if generation and (known is None or not known.order):
            self._by_host[host] = WorkspaceState(0, generation, digest)

    def pushed(self, hosts: Iterable[Uid], generation: int, digest: str) -> None:
        """These hosts have been brought to a state."""
        self._order += 1
        state = WorkspaceState(self._order, generation, digest)
        self._by_host.update(dict.fromkeys(hosts, state))

    def wanted(self, hosts: Iterable[Uid]) -> WorkspaceState:
        """What processes on these hosts are to run, all of them; no digest if nothing is known."""
        known = [self._by_host[uid] for uid in hosts if uid in self._by_host]
        return max(known, default=WorkspaceState(0, 0, ""))

    def having(self, digest: str) -> list[Uid]:
        """The hosts that should have this state."""
        return [uid for uid, state in self._by_host.items() if state.digest == digest]
