"""The processes that one knows, living and dead."""

from __future__ import annotations

import threading
from collections.abc import Callable

from monarch.runtime.links.peer import Peer
from monarch.wire.address import ProcAddress, Uid

__all__ = ["PeerTable"]

_MAX_DEAD = 10_000
"""How many dead processes are remembered, the last ones: more than the procs of the largest mesh,
so that one that dies as a whole is known to its last member.

To forget the older ones is safe. Whoever still refers to one meets it like a stranger, and so has
its host agent asked (``Acquaintances.meet``), which says that it is gone; a Hello of it that comes
this late opens no connection. Hosts are never forgotten: their death is what tells those who attach
again that they must, and there are only as many as there are addresses.
"""


class PeerTable:
    """Peers by uid, and by the host that they are on. From any thread."""

    def __init__(self) -> None:
        self._peers: dict[Uid, Peer] = {}
        self._dead: dict[Uid, Peer] = {}
        # The living ones, as a host is lost with all of its own; a dictionary keeps their order.
        self._on_host: dict[Uid, dict[Uid, None]] = {}
        self._lock = threading.Lock()
        self.get: Callable[[Uid], Peer | None] = self._peers.get

    def __len__(self) -> int:
        return len(self._peers)

    def replace(self, address: ProcAddress) -> Peer:
        """A new peer, whatever was known of an earlier process of that uid."""
        with self._lock:
            self._dead.pop(address.uid, None)
            return self._add(address)

    def _add(self, address: ProcAddress) -> Peer:
        """Under the lock."""
        self._leave_host(self._peers.get(address.uid))
        peer = self._peers[address.uid] = Peer(address)
        self._enter_host(address)
        return peer

    def _enter_host(self, address: ProcAddress) -> None:
        if address.host_uid not in ("", address.uid):
            self._on_host.setdefault(address.host_uid, {})[address.uid] = None

    def _leave_host(self, peer: Peer | None) -> None:
        if peer is None:
            return
        living = self._on_host.get(peer.address.host_uid, {})
        living.pop(peer.address.uid, None)
        if not living:
            self._on_host.pop(peer.address.host_uid, None)

    def find(self, address: ProcAddress) -> tuple[Peer, bool]:
        """The peer of that uid, and whether it is new."""
        with self._lock:
            peer = self._peers.get(address.uid)
            if peer is not None:
                return peer, False
            return self._add(address), True

    def locate(self, peer: Peer, address: ProcAddress) -> None:
        """It is known now where a peer is."""
        with self._lock:
            if self._peers.get(address.uid) is peer and peer.failure is None:
                self._leave_host(peer)
                peer.address = address
                self._enter_host(address)

    def pop(self, uid: Uid) -> Peer | None:
        with self._lock:
            self._dead.pop(uid, None)
            peer = self._peers.pop(uid, None)
            self._leave_host(peer)
            return peer

    def bury(self, uid: Uid) -> None:
        """A peer is down: it may be forgotten when many others have died after it."""
        with self._lock:
            peer = self._peers.get(uid)
            if peer is None or peer.failure is None:
                return
            self._leave_host(peer)
            if _is_host(peer.address):
                return
            self._dead[uid] = peer
            if len(self._dead) > _MAX_DEAD:
                oldest = next(iter(self._dead))
                del self._dead[oldest], self._peers[oldest]

    def on_host(self, host: Uid) -> list[Uid]:
        """The living procs of a host."""
        with self._lock:
            return list(self._on_host.get(host, ()))


def _is_host(address: ProcAddress) -> bool:
    """Whether a process is a host agent, or a client, which is one too; not a proc."""
    return address.host_uid in ("", address.uid) and bool(address.urls)
