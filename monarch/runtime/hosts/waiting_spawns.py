"""Orders to make procs that wait, because the host's workspace is not the one that they need.

A host that was added, or restarted, or missed a push, must get the state that the rest of the mesh
runs before any proc runs on it. Its client brings it; if the client cannot, the procs are refused,
with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from monarch.runtime.answers import Response
from monarch.runtime.hosts.hosted_workspace import HostedWorkspace
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import Bring, SpawnProcs


class SpawningHost(Protocol):
    """The parts of a host agent that waiting orders use."""

    node: Node
    workspace: HostedWorkspace

    @property
    def num_running(self) -> int: ...

    def start_procs(self, envelope: Envelope[SpawnProcs]) -> None: ...

    def never_started(self, owner: ProcAddress, uid: Uid, error: Exception) -> None: ...


class WaitingSpawns:
    """Spawns that wait for the workspace. All methods run on the node's I/O loop."""

    def __init__(self, host: SpawningHost) -> None:
        self._host = host
        self._orders: list[Envelope[SpawnProcs]] = []
        self._asked: str = ""

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
        """Start the orders that waited for the workspace, which has changed or is at rest."""
        due = [e for e in self._orders if not self._is_early(e.message)]
        self._orders = [e for e in self._orders if e not in due]
        for envelope in due:
            self._host.start_procs(envelope)
        if self._orders and not self._host.workspace.is_moving and not self._asked:
            self._ask(self._orders[0].message)

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
        node = host.node
        answer = node.ask(
            root,
            Bring(
                host=node.address,
                generation=host.workspace.generation,
                digest=host.workspace.digest,
                wanted=order.digest,
                num_running=host.num_running,
            ),
        )

        def answered() -> None:
            node.loop.call_soon(lambda: self._answered(answer))

        answer.on_set(answered)

    def _answered(self, answer: Promise[Response[str]]) -> None:
        wanted, self._asked = self._asked, ""
        now = self._host.workspace.digest
        outcome = answer.value
        if outcome.or_else("") == now:
            # This is what the others have, too: another author has pushed it.
            wanted_now = [e for e in self._orders if e.message.digest == wanted]
            self._orders = [e for e in self._orders if e not in wanted_now]
            for envelope in wanted_now:
                self._host.start_procs(envelope)
        elif wanted != now:
            why = outcome.error or "its workspace is not what the rest of the mesh runs"
            specs = {spec.uid for o in self._messages() if o.digest == wanted for spec in o.procs}
            self._refuse(lambda uid: uid in specs, why)
        self.changed()

    def _refuse(self, is_meant: Callable[[Uid], bool], why: str) -> None:
        left = []
        for envelope in self._orders:
            order = envelope.message
            meant = [spec.uid for spec in order.procs if is_meant(spec.uid)]
            for uid in meant:
                self._host.never_started(order.owner, uid, ValueError(why))
            order.procs = tuple(spec for spec in order.procs if spec.uid not in meant)
            if order.procs:
                left.append(envelope)
        self._orders = left
