"""The trees along which this process sends: see ``core.fanout``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import msgspec

from monarch.core.call_table import LIFE_BITS
from monarch.core.fanout import Branch, Members, Tree, branches, place_of, proc_uid
from monarch.errors import MeshFailure
from monarch.mesh import Slice
from monarch.runtime.links.address_book import AddressBook
from monarch.runtime.links.network import Network
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Bytes, Envelope, encode
from monarch.wire.message import (
    Answer,
    Cast,
    Credit,
    Grow,
    Message,
    PortMark,
    ProcDown,
    Replies,
    Reply,
    Retire,
    Unmapped,
    Wither,
)

_log = logging.getLogger("monarch.node")

_DIRECT = (Reply, Replies, Answer, PortMark, Credit, Retire, Unmapped)
_MANY_PORTS = 1024


class TreeRoute:
    """The route of one sender along one tree.

    All messages from the sender to the tree's mesh take this route, and arrive in order.
    """

    def __init__(self, node: Network, tree: Tree, number: int, first_degree: int) -> None:
        self.tree = tree
        #: How many hosts this process itself sends to.
        self._first_degree = first_degree or tree.degree
        #: The number of the last message.
        self.number = number
        #: The procs of the mesh that are gone, by their number in the tree.
        self.gone: set[int] = set()
        self._node = node
        #: The hosts that are lost, by their number in the tree.
        self._dead = [i for i, host in enumerate(tree.hosts) if node.failure_of(host.uid)]
        #: Whether the hosts know the tree as it is, without those that are lost.
        self._is_grown = False
        #: The parts of the tree that this process sends to.
        self._branches: list[Branch] = []
        #: The ports of calls that may still be answered.
        self._ports: list[int] = []
        #: Whether a message was sent that expects no answer.
        self._has_told = False

    def send(
        self,
        members: Members,
        message: Message,
        data: Bytes = b"",
        buffers: Sequence[Bytes] = (),
        port: int = 0,
    ) -> None:
        """Send to some members; answers to ``port`` are gathered on their way back."""
        node, tree = self._node, self.tree
        with node.casting:
            if not self._is_grown:
                self._grow()
            if port:
                self._note(port)
            else:
                self._has_told = True
            self.number += 1
            cast = Cast(
                mesh=tree.mesh,
                sender=node.uid,
                number=self.number,
                start=0,
                stop=0,
                dead=tuple(self._dead),
                members=members.to_wire(),
                inner=encode(message),
                parent=node.address if port else None,
                port=port,
            )
            for start, stop in self._branches:
                if members.count(start * tree.per_host, stop * tree.per_host):
                    host = tree.hosts[start]
                    part = msgspec.structs.replace(cast, start=start, stop=stop)
                    node.transmit(host, Envelope(host.uid, part, data, buffers))

    def _grow(self) -> None:
        self._is_grown = True
        node, tree = self._node, self.tree
        self._branches = branches(0, len(tree.hosts), self._first_degree, self._dead)
        grow = Grow(
            mesh=tree.mesh,
            sender=node.address,
            start=0,
            hosts=tree.hosts,
            per_host=tree.per_host,
            degree=tree.degree,
            dead=tuple(self._dead),
        )
        for host, part in grow_branches(grow, self._branches):
            node.transmit(host, Envelope(host.uid, part))

    def wither(self) -> None:
        """Tell the hosts that all procs of the mesh are gone and no message will follow."""
        node, tree = self._node, self.tree
        with node.casting:
            order = Wither(tree.mesh, node.uid, tuple(self._dead))
            for start, _ in branches(0, len(tree.hosts), self._first_degree, self._dead):
                host = tree.hosts[start]
                node.transmit(host, Envelope(host.uid, order))

    def _note(self, port: int) -> None:
        self._ports.append(port)
        if len(self._ports) > _MANY_PORTS:
            calls = self._node.calls
            self._ports = [port for port in self._ports if calls.sink(port) is not None]

    def host_down(self, number: int, reason: str) -> int:
        """Handle the loss of the host at index ``number``. Running calls through it get no answer;
        later calls take another way.

        Returns how many hosts may have missed a message that expects no answer.
        """
        with self._node.casting:
            if number in self._dead:
                return 0
            below = self.tree.below(number, self._dead, self._first_degree)
            self._dead.append(number)
            self._is_grown = False
            ports = list(self._ports)
        for host in below:
            for place in range(host * self.tree.per_host, (host + 1) * self.tree.per_host):
                target = proc_uid(self.tree.mesh, place)
                why = (
                    f"the host that hands its messages on was lost ({reason}); it may or may not "
                    "have got this one, later ones go another way"
                )
                failure = MeshFailure(target, (), why, "proc")
                for port in ports:
                    sink = self._node.calls.sink(port)
                    if sink is not None and sink.down(target, failure):
                        self._node.calls.close(port)
        return len(below) if self._has_told else 0


class Trees:
    """The routes of a process, by the proc meshes that they lead to; it also connects to the hosts
    on them.

    ``on_over`` is called for each mesh whose last proc is gone.
    """

    def __init__(self, node: Network, book: AddressBook) -> None:
        self._node = node
        self._book = book
        self.on_over: list[Callable[[Uid], None]] = []
        #: How many hosts this process itself sends to; 0 for as many as each host does.
        self.first_degree = 0
        #: The number of the last message along any route that was dropped. A later route to the
        #: same mesh counts on from it, as hosts may remember the earlier route.
        self._number = node.life << LIFE_BITS
        self._routes: dict[Uid, TreeRoute] = {}
        #: By host: the routes through it, and its number in each.
        self._through: dict[Uid, list[tuple[TreeRoute, int]]] = {}
        self._lock = threading.Lock()

    def route(self, tree: Tree) -> TreeRoute:
        """Return the route along ``tree``; the first call for a mesh makes it."""
        route = self._routes.get(tree.mesh)
        if route is None:
            for host in tree.hosts:
                self._book.host_met(host)
            with self._lock:
                route = self._routes.get(tree.mesh)
                if route is None:
                    route = TreeRoute(self._node, tree, self._number, self.first_degree)
                    for number, host in enumerate(tree.hosts):
                        self._through.setdefault(host.uid, []).append((route, number))
                    self._routes[tree.mesh] = route
        return route

    def _of_host(self, host: Uid) -> list[tuple[TreeRoute, int]]:
        with self._lock:
            return list(self._through.get(host, ()))

    def _route_to(self, uid: Uid) -> tuple[TreeRoute, int] | None:
        """Return the route that leads to a proc, and the proc's number in the tree; else None."""
        mesh, number = place_of(uid) or ("", 0)
        route = self._routes.get(mesh)
        return None if route is None else (route, number)

    def leads_to(self, uid: Uid) -> bool:
        """Return whether messages to this proc go along a tree."""
        return self._route_to(uid) is not None

    def send(self, to: ProcAddress, envelope: Envelope[Message]) -> bool:
        """Send an agent's message along the tree that leads to a proc, so that it keeps its order
        among calls to the proc.

        Returns false if it was not sent, because there is no such tree, or because the message
        needs no order.
        """
        if not self._routes or isinstance(envelope.message, _DIRECT):
            return False
        found = self._route_to(to.uid)
        if found is None:
            return False
        route, number = found
        member = Members([Slice(offset=number, sizes=[], strides=[])])
        route.send(member, envelope.message, envelope.payload, envelope.buffers)
        return True

    def procs_on(self, host: Uid) -> list[Uid]:
        """Return the procs of a host to which messages go along trees. Most of these procs are not
        peers of this process.
        """
        return [
            proc_uid(route.tree.mesh, number * route.tree.per_host + place)
            for route, number in self._of_host(host)
            for place in range(route.tree.per_host)
        ]

    def proc_down(self, uid: Uid) -> None:
        """Note that a proc is gone; with the last proc of a mesh its route is dropped."""
        found = self._route_to(uid)
        if found is None:
            return
        route, member = found
        tree = route.tree
        with self._lock:
            route.gone.add(member)
            is_over = len(route.gone) == len(tree.hosts) * tree.per_host
            if is_over and self._routes.pop(tree.mesh, None) is not None:
                self._number = max(self._number, route.number)
                for number, host in enumerate(tree.hosts):
                    self._through[host.uid].remove((route, number))
                    if not self._through[host.uid]:
                        del self._through[host.uid]
        if is_over:
            route.wither()
            for tell in self.on_over:
                tell(tree.mesh)

    def host_down(self, uid: Uid, down: ProcDown) -> None:
        through = self._of_host(uid)
        num_below = max((route.host_down(n, down.reason) for route, n in through), default=0)
        if num_below and not down.expected:
            route, number = through[0]
            _log.warning(
                "the host %s was lost, which hands messages on to others (%d): broadcasts that it "
                "had in hand have not reached them",
                next(iter(route.tree.hosts[number].urls), uid),
                num_below,
            )


def grow_branches(grow: Grow, parts: Sequence[Branch]) -> list[tuple[ProcAddress, Grow]]:
    """Return (address, message) for the first host of each branch. The message tells the host which
    part of the tree begins there.
    """
    orders = []
    for start, stop in parts:
        hosts = grow.hosts[start - grow.start : stop - grow.start]
        orders.append((hosts[0], msgspec.structs.replace(grow, start=start, hosts=hosts)))
    return orders
