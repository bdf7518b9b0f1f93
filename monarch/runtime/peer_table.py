"""The processes that one knows, living and dead."""

from __future__ import annotations

import threading
from collections.abc import Callable

from monarch.runtime.peer import Peer
from monarch.wire.address import ProcAddress, Uid

__all__ = ["PeerTable"]

_MAX_DEAD = 10_000
"""How many dead processes are remembered, the last ones: more than the procs of the largest mesh,
so that one that dies as a whole is known to its last member.

To forget the older ones is safe. Whoever still refers to one meets it like a stranger, and so has
its host agent asked (``Node._meet``), which says that it is gone; a Hello of it that comes this
late opens no connection (``Node._on_hello``). Hosts are never forgotten: their death is what tells
those who attach again that they must, and there are only as many as there are addresses.
"""


class PeerTable:
    """Peers by uid, and by the host that they are on. From any thread."""

    def __init__(self) -> None:
        self._peers: dict[Uid, Peer] = {}
        self._dead: dict[Uid, Peer] = {}
        self._lock = threading.Lock()
        self.get: Callable[[Uid], Peer | None] = self._peers.get

    def __len__(self) -> int:
        return len(self._peers)

    def replace(self, address: ProcAddress) -> Peer:
        """A new peer, whatever was known of an earlier process of that uid."""
        with self._lock:
            self._dead.pop(address.uid, None)
            peer = self._peers[address.uid] = Peer(address)
        return peer

    def find(self, address: ProcAddress) -> tuple[Peer, bool]:
        """The peer of that uid, and whether it is new."""
        with self._lock:
            peer = self._peers.get(address.uid)
            if peer is not None:
                return peer, False
            peer = self._peers[address.uid] = Peer(address)
        return peer, True

    def pop(self, uid: Uid) -> Peer | None:
        with self._lock:
            self._dead.pop(uid, None)
            return self._peers.pop(uid, None)

    def bury(self, uid: Uid) -> None:
        """A peer is down: it may be forgotten when many others have died after it."""
        with self._lock:
            peer = self._peers.get(uid)
            if peer is None or peer.failure is None or _is_host(peer.address):
                return
            self._dead[uid] = peer
            if len(self._dead) > _MAX_DEAD:
                oldest = next(iter(self._dead))
                del self._dead[oldest], self._peers[oldest]

    def addresses(self) -> list[ProcAddress]:
        with self._lock:
            return [peer.address for peer in self._peers.values()]


def _is_host(address: ProcAddress) -> bool:
    """Whether a process is a host agent, or a client, which is one too; not a proc."""
    return address.host_uid in ("", address.uid) and bool(address.urls)
