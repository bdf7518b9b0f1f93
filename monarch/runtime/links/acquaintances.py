"""Whom a process knows, where they are, and whose end it hears of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from monarch.errors import MeshFailure
from monarch.net.transport import Connection
from monarch.runtime.ends.life_lines import LifeLines
from monarch.runtime.links.peer import Peer
from monarch.runtime.links.peer_table import PeerTable
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Envelope, OtherVersion, pack
from monarch.wire.message import PROTOCOL_VERSION, AnyMessage, Hello, Introduce, ProcUp, Watch

__all__ = ["Acquaintances"]

_MAX_INTRODUCED = 10_000
_LINGER_SECONDS = 1.0


class Network(Protocol):
    """What is needed of the node."""

    address: ProcAddress
    lives: LifeLines

    @property
    def uid(self) -> Uid: ...

    def handle(self, kind: type, handler: Callable[[Envelope], None]) -> None: ...

    def send(self, to: ProcAddress, message: AnyMessage) -> None: ...


class Acquaintances:
    """The processes that a node has met, and those that others told it of."""

    def __init__(self, node: Network, connect: Callable[[str], Connection]) -> None:
        self.peers = PeerTable()
        # Who calls us may own what is here, and may be called back: its death matters.
        self.watches_callers = False
        self.on_host_met: Callable[[ProcAddress], None] = lambda host: None
        # A host that was lost is spoken to again.
        self.on_sought_again: Callable[[Uid], None] = lambda uid: None
        # A process that we speak to is of another version, which is its end for us; why.
        self.on_unfit: Callable[[Uid, str], None] = lambda uid, reason: None
        # A new process of a uid is to come.
        self.on_expected: Callable[[Uid], None] = lambda uid: None
        self._node = node
        self._connect = connect
        self._introduced: dict[Uid, ProcAddress] = {}
        self._watched: set[Uid] = set()
        self._lock = threading.Lock()
        node.handle(Hello, self._on_hello)
        node.handle(Introduce, self._on_introduce)
        node.handle(ProcUp, self._on_proc_up)

    def failure_of(self, uid: Uid) -> MeshFailure | None:
        """Why a process is gone; ``None`` for one that is not known to be."""
        peer = self.peers.get(uid)
        return None if peer is None else peer.failure

    def address_of(self, uid: Uid) -> ProcAddress:
        """The address of a process that has introduced itself."""
        if uid == self._node.uid:
            return self._node.address
        peer = self.peers.get(uid)
        if peer is not None:
            return peer.address
        return self._introduced.get(uid, ProcAddress(uid))

    def introduce(self, address: ProcAddress) -> None:
        """Know where a process is that we have not met, in case it must be answered."""
        self._introduced[address.uid] = address
        if len(self._introduced) > _MAX_INTRODUCED:
            self._introduced.pop(next(iter(self._introduced)))

    def expect(self, address: ProcAddress) -> Peer:
        """A process that will come up; what is sent to it meanwhile is kept.

        Whatever was known of an earlier process of that uid is forgotten.
        """
        peer = self.peers.replace(address)
        self.on_expected(address.uid)
        if address.host_uid not in ("", address.uid, self._node.uid):
            self.on_host_met(_host_of(address))
        return peer

    def meet(self, address: ProcAddress) -> Peer:
        """The peer at ``address``; one that is new is connected to, and its end heard of."""
        peer = self.peers.get(address.uid)
        if peer is not None:
            return peer
        with self._lock:
            address = self._introduced.get(address.uid, address)
            peer, is_new = self.peers.find(address)
            if not is_new:
                return peer
            self._introduced.pop(address.uid, None)
        if address.urls:
            self._open(peer, address)
        node = self._node
        if address.host_uid == node.uid != address.uid:
            # Told of its end as its host agent; but if that was long ago, we may have forgotten.
            node.send(node.address, Watch(address.uid, node.address))
        self._watch(address)
        return peer

    def peer_up(self, address: ProcAddress) -> None:
        """A process listens at ``address``."""
        peer, _ = self.peers.find(address)
        if not peer.is_up:
            self._open(peer, address)

    def unwatch(self, uid: Uid) -> None:
        """Its end has been told, or is of no interest."""
        self._watched.discard(uid)

    def forget(self, uid: Uid) -> Peer | None:
        """A process that has left in peace; the peer that it was."""
        self._introduced.pop(uid, None)
        self._watched.discard(uid)
        return self.peers.pop(uid)

    def bury(self, uid: Uid) -> None:
        """A process that is down."""
        self._introduced.pop(uid, None)
        self.peers.bury(uid)

    def _watch(self, address: ProcAddress) -> None:
        """Hear of a proc's death, from its host agent."""
        node = self._node
        if address.uid in self._watched or address.host_uid in ("", address.uid, node.uid):
            return
        self._watched.add(address.uid)
        host = _host_of(address)
        if self.failure_of(host.uid) is not None:
            # Lost once; somebody who was given a proc on it may know that it is back. If it is not,
            # nobody answers for the proc, and only the silence tells.
            self.on_sought_again(host.uid)
            node.lives.expect(host.uid)
        node.send(host, Watch(address.uid, node.address))
        self.on_host_met(host)

    def _open(self, peer: Peer, address: ProcAddress) -> None:
        url = self._choose_url(address)
        self.peers.locate(peer, address)
        hello = pack(Envelope(address.uid, Hello(self._node.address, PROTOCOL_VERSION)))
        peer.up(address, lambda: self._connect(url), hello)

    def _choose_url(self, address: ProcAddress) -> str:
        local = [url for url in address.urls if url.startswith("ipc://")]
        remote = [url for url in address.urls if not url.startswith("ipc://")]
        if local and (not remote or address.machine == self._node.address.machine):
            return local[0]
        return remote[0]

    def _on_hello(self, envelope: Envelope) -> None:
        assert isinstance(envelope.message, Hello)
        proc = envelope.message.proc
        with self._lock:
            # One that we have given up stays given up, however late its Hello comes.
            known = self.peers.get(proc.uid)
            if known is None:
                # Met when we first send to it: we then also hear of its end, and hang up.
                self.introduce(proc)
                return
        if not known.is_up and known.failure is None:
            self._open(known, proc)
        if self.watches_callers and known.failure is None:
            self._watch(proc)

    def met_other_version(self, error: OtherVersion) -> None:
        """Who speaks another version learns of ours; whoever waits here for its answers, of its."""
        hello = error.hello
        if hello is None or not hello.proc.urls:
            return
        if not hello.is_refusal:
            connection = self._connect(self._choose_url(hello.proc))
            refusal = Hello(self._node.address, PROTOCOL_VERSION, is_refusal=True)
            connection.send(pack(Envelope(hello.proc.uid, refusal)))
            connection.close(_LINGER_SECONDS)
        if self.peers.get(hello.proc.uid) is not None:
            self.on_unfit(hello.proc.uid, str(error))

    def _on_introduce(self, envelope: Envelope) -> None:
        assert isinstance(envelope.message, Introduce)
        self.introduce(envelope.message.proc)

    def _on_proc_up(self, envelope: Envelope) -> None:
        assert isinstance(envelope.message, ProcUp)
        self.peer_up(envelope.message.proc)


def _host_of(proc: ProcAddress) -> ProcAddress:
    return ProcAddress(proc.host_uid, proc.host_urls, proc.machine)
