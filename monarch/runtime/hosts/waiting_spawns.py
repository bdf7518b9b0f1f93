"""Orders to make procs that wait, because the host's workspace is not the one that they need.

A host that was added, or restarted, or missed a push, must get the state that the rest of the mesh
runs before any proc runs on it. Its client brings it; if the client cannot, the procs are refused,
with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from monarch.runtime.answers import Response
from monarch.runtime.hosts.host_proc import HostProc
from monarch.runtime.hosts.hosted_workspace import HostedWorkspace
from monarch.runtime.node import Node
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import Bring, SpawnProcs


class SpawningHost(Protocol):
    """The parts of a host agent that waiting orders use."""

    node: Node
    procs: dict[Uid, HostProc]
    workspace: HostedWorkspace

    def start_procs(self, envelope: Envelope[SpawnProcs]) -> None: ...

    def never_started(self, owner: ProcAddress, uid: Uid, error: Exception) -> None: ...


class WaitingSpawns:
    """Spawns that wait for the workspace. All methods run on the node's I/O loop."""

    def __init__(self, host: SpawningHost) -> None:
        self._host = host
        self._orders: list[Envelope[SpawnProcs]] = []
        #: The digest of the state that the client was asked to bring; "" if nothing was asked.
        self._asked = ""

    def holds(self, envelope: Envelope[SpawnProcs]) -> bool:
        """Return whether an order has to wait; later it is started or refused."""
        order = envelope.message
        if not self._is_early(order):
            return False
        self._orders.append(envelope)
        self.changed()
        return True

    def has(self, uid: Uid) -> bool:
        """Return whether the order to make this proc waits."""
        return any(spec.uid == uid for order in self._messages() for spec in order.procs)

    def changed(self) -> None:
        """Start the orders that waited for the workspace: it has changed, or a push has ended."""
        self._start([e for e in self._orders if not self._is_early(e.message)])
        if self._orders and not self._host.workspace.is_moving and not self._asked:
            self._ask(self._orders[0].message)

    def _start(self, orders: list[Envelope[SpawnProcs]]) -> None:
        self._orders = [e for e in self._orders if e not in orders]
        for envelope in orders:
            self._host.start_procs(envelope)

    def drop(self, uids: Iterable[Uid]) -> None:
        """Drop the orders for these procs."""
        gone = set(uids)
        self._refuse(lambda uid: uid in gone, "it was stopped")

    def clear(self) -> None:
        """Drop all orders, because the client has left."""
        self._orders.clear()

    def _messages(self) -> list[SpawnProcs]:
        return [envelope.message for envelope in self._orders]

    def _is_early(self, order: SpawnProcs) -> bool:
        host = self._host
        if host.workspace.is_moving:
            return True
        return order.digest not in ("", host.workspace.digest) and bool(host.workspace.digest)

    def _ask(self, order: SpawnProcs) -> None:
        """Ask the client to bring the state that the spawn needs."""
        host, root = self._host, order.root or order.owner
        self._asked = order.digest
        bring = Bring(
            host=host.node.address,
            generation=host.workspace.generation,
            digest=host.workspace.digest,
            wanted=order.digest,
            num_running=len(host.procs),
        )
        host.node.ask_on_loop(root, bring, self._answered)

    def _answered(self, response: Response[str]) -> None:
        wanted, self._asked = self._asked, ""
        digest = self._host.workspace.digest
        if response.or_else("") == digest:
            # The rest of the mesh has the state of this host too: another author has pushed it.
            self._start([e for e in self._orders if e.message.digest == wanted])
        elif wanted != digest:
            why = response.error or "its workspace is not what the rest of the mesh runs"
            specs = {spec.uid for o in self._messages() if o.digest == wanted for spec in o.procs}
            self._refuse(lambda uid: uid in specs, why)
        self.changed()

    def _refuse(self, is_meant: Callable[[Uid], bool], why: str) -> None:
        """Remove procs from the waiting orders, and report ``why`` they are not made. ``is_meant``
        returns whether a proc is one of them.
        """
        remaining = []
        for envelope in self._orders:
            order = envelope.message
            meant = [spec.uid for spec in order.procs if is_meant(spec.uid)]
            for uid in meant:
                self._host.never_started(order.owner, uid, ValueError(why))
            order.procs = tuple(spec for spec in order.procs if spec.uid not in meant)
            if order.procs:
                remaining.append(envelope)
        self._orders = remaining
