"""The address book: the processes that a node knows, and where they are."""

from __future__ import annotations

import threading
from collections.abc import Callable

from monarch.errors import MeshFailure
from monarch.net.transport import Connection
from monarch.runtime.links.failure_detector import FailureDetector
from monarch.runtime.links.network import Gone, Network
from monarch.runtime.links.peer import Peer
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Envelope, OtherVersion, pack
from monarch.wire.message import PROTOCOL_VERSION, Hello, Introduce, ProcDown, ProcUp, Watch

_MAX_INTRODUCED = 10_000
_LINGER_SECONDS = 1.0

_MAX_DEAD = 10_000
"""How many dead processes are remembered, the last ones: more than the procs of the largest mesh,
so that one that dies as a whole is known to its last member.

To forget the older ones is safe. A process that still refers to one meets it like a stranger, and
so asks its host agent (``AddressBook.meet``), which says that it is gone; a Hello of it that comes
this late opens no connection. Hosts are never forgotten: their death tells a client that it must
attach again, and there are only as many as there are addresses.
"""


class PeerTable:
    """The peers by uid, and by the host that they are on. Any thread may call it.

    At most ``max_dead`` peers that are down are remembered.
    """

    def __init__(self, max_dead: int = _MAX_DEAD) -> None:
        self.max_dead = max_dead
        self._peers: dict[Uid, Peer] = {}
        #: The dead ones among them, the oldest first; no hosts.
        self._dead: dict[Uid, Peer] = {}
        #: The living procs by host, which is lost with all of them; a dictionary keeps their order.
        self._on_host: dict[Uid, dict[Uid, None]] = {}
        self._lock = threading.Lock()
        self.get: Callable[[Uid], Peer | None] = self._peers.get

    def __len__(self) -> int:
        return len(self._peers)

    def replace(self, address: ProcAddress) -> Peer:
        """Return a new peer for ``address``. An earlier process with its uid counts as down."""
        with self._lock:
            self._dead.pop(address.uid, None)
            replaced = self._peers.get(address.uid)
            peer = self._add(address)
        if replaced is not None:
            # Else its connection would stay open, as nothing refers to it any more.
            replaced.down(MeshFailure(address.uid, (), "another process has taken its place"))
        return peer

    def _add(self, address: ProcAddress) -> Peer:
        """Add a new peer. Call it under the lock."""
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
        """Return the peer with the uid of ``address``, and whether this call has made it."""
        with self._lock:
            peer = self._peers.get(address.uid)
            if peer is not None:
                return peer, False
            return self._add(address), True

    def locate(self, peer: Peer, address: ProcAddress) -> None:
        """Set the address of a peer that was known only by its uid."""
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

    def retire(self, uid: Uid) -> None:
        """Note that a peer is down. It is forgotten once ``max_dead`` others went down after it."""
        with self._lock:
            peer = self._peers.get(uid)
            if peer is None or peer.failure is None:
                return
            self._leave_host(peer)
            if _is_host(peer.address):
                return
            self._dead[uid] = peer
            if len(self._dead) > self.max_dead:
                oldest = next(iter(self._dead))
                del self._dead[oldest], self._peers[oldest]

    def on_host(self, host: Uid) -> list[Uid]:
        """Return the living procs of a host."""
        with self._lock:
            return list(self._on_host.get(host, ()))


class AddressBook:
    """The processes that a node has connected to, and those that others introduced."""

    def __init__(
        self, node: Network, detector: FailureDetector, connect: Callable[[str], Connection]
    ) -> None:
        self.peers = PeerTable()
        #: Whether the ends of processes that call us are watched, as they may own actors here.
        self.watches_callers = False
        #: Called for each host whose procs this process speaks to.
        self.on_host_met: list[Callable[[ProcAddress], None]] = []
        self._node = node
        self._detector = detector
        self._connect = connect
        #: The addresses of processes that this one has not sent to yet.
        self._introduced: dict[Uid, ProcAddress] = {}
        #: The procs whose ends their host agents were asked to report.
        self._watched: set[Uid] = set()
        self._lock = threading.Lock()
        node.on_gone.append(self._forget_gone)
        node.on(Hello, self._on_hello)
        node.on(Introduce, self._on_introduce)
        node.on(ProcUp, self._on_proc_up)

    def failure_of(self, uid: Uid) -> MeshFailure | None:
        """Return why a process is gone; ``None`` if it is not known to be gone."""
        peer = self.peers.get(uid)
        return None if peer is None else peer.failure

    def address_of(self, uid: Uid) -> ProcAddress:
        """Return the address of a process that has introduced itself."""
        if uid == self._node.uid:
            return self._node.address
        peer = self.peers.get(uid)
        if peer is not None:
            return peer.address
        return self._introduced.get(uid, ProcAddress(uid))

    def introduce(self, address: ProcAddress) -> None:
        """Note the address of a process that we are not connected to, so that we can answer it."""
        self._introduced[address.uid] = address
        if len(self._introduced) > _MAX_INTRODUCED:
            self._introduced.pop(next(iter(self._introduced)))

    def expect(self, address: ProcAddress) -> Peer:
        """Note a process that will start. Messages to it are kept until it is up.

        An earlier process with the same uid is forgotten.
        """
        peer = self.peers.replace(address)
        for forget in self._node.on_gone:
            forget(address.uid, Gone.EXPECTED)
        if address.host_uid not in ("", address.uid, self._node.uid):
            self.host_met(_host_of(address))
        return peer

    def host_met(self, host: ProcAddress) -> None:
        """Report to ``on_host_met`` that this process sends to procs of a host."""
        for tell in self.on_host_met:
            tell(host)

    def meet(self, address: ProcAddress) -> Peer:
        """Return the peer at ``address``; connect to a new peer, and watch for its end."""
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
            # We hear of its end as its host agent; but if that was long ago, we have forgotten it.
            node.send(node.address, Watch(address.uid, node.address))
        self._watch(address)
        return peer

    def reach(self, address: ProcAddress) -> None:
        """Make sure that a message can be sent to a running process: keep its existing connection,
        or make one. If the process counts as lost, it is connected to again, because it may be
        back.
        """
        peer = self.peers.get(address.uid)
        if peer is None or peer.failure is not None:
            self.expect(address)
        self.peer_up(address)

    def peer_up(self, address: ProcAddress) -> None:
        """Note that a process listens at ``address``."""
        peer, _ = self.peers.find(address)
        if not peer.is_up:
            self._open(peer, address)

    def unwatch(self, uid: Uid) -> None:
        """Stop watching a process: its end was reported, or does not matter."""
        self._watched.discard(uid)

    def mark_down(self, uid: Uid, failure: MeshFailure) -> bool:
        """Record that a process is down, and why; return false if it was recorded before."""
        peer, _ = self.peers.find(ProcAddress(uid))
        if not peer.down(failure):
            return False
        self._introduced.pop(uid, None)
        self.peers.retire(uid)
        return True

    def _forget_gone(self, uid: Uid, how: Gone) -> None:
        if how in (Gone.DOWN, Gone.LEFT):
            self._watched.discard(uid)
        if how is Gone.LEFT:
            self._introduced.pop(uid, None)
            peer = self.peers.pop(uid)
            if peer is not None:
                peer.down(MeshFailure(uid, (), "left"))

    def _watch(self, address: ProcAddress) -> None:
        """Ask the host agent of a proc to report the proc's death."""
        node = self._node
        if address.uid in self._watched or address.host_uid in ("", address.uid, node.uid):
            return
        self._watched.add(address.uid)
        host = _host_of(address)
        if self.failure_of(host.uid) is not None:
            # It was lost once. Whoever introduced the proc may know that it is back; if it is not,
            # only its silence shows that the proc has ended.
            node.peer_left(host.uid)
            self._detector.expect(host.uid)
        node.send(host, Watch(address.uid, node.address))
        self.host_met(host)

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

    def _on_hello(self, hello: Hello) -> None:
        proc = hello.proc
        with self._lock:
            peer = self.peers.get(proc.uid)
            if peer is None:
                # Connect when we first send to it: from then on we also hear of its end.
                self.introduce(proc)
                return
        if peer.failure is not None:
            return  # A process that was given up stays down, however late its Hello comes.
        if not peer.is_up:
            self._open(peer, proc)
        if self.watches_callers:
            self._watch(proc)

    def met_other_version(self, error: OtherVersion) -> None:
        """Tell a peer that runs another version which version runs here.

        All waits for the peer end with an error that names the peer's version.
        """
        hello = error.hello
        if hello is None or not hello.proc.urls:
            return
        if not hello.is_refusal:
            connection = self._connect(self._choose_url(hello.proc))
            refusal = Hello(self._node.address, PROTOCOL_VERSION, is_refusal=True)
            connection.send(pack(Envelope(hello.proc.uid, refusal)))
            connection.close(_LINGER_SECONDS)
        if self.peers.get(hello.proc.uid) is not None:
            self._node.report_down(ProcDown(hello.proc.uid, str(error)))

    def _on_introduce(self, introduce: Introduce) -> None:
        self.introduce(introduce.proc)

    def _on_proc_up(self, up: ProcUp) -> None:
        self.peer_up(up.proc)


def _host_of(proc: ProcAddress) -> ProcAddress:
    return ProcAddress(proc.host_uid, proc.host_urls, proc.machine)


def _is_host(address: ProcAddress) -> bool:
    """Return whether a process is a host agent, or a client, which is one too; false for a proc."""
    return address.host_uid in ("", address.uid) and bool(address.urls)
