"""What the end of others means here: of those that die, give way to new ones, or leave in peace."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Protocol

from monarch.core.call_table import CallTable
from monarch.errors import MeshFailure
from monarch.net.loop import Loop
from monarch.runtime.ends.life_lines import LifeLines
from monarch.runtime.links.acquaintances import Acquaintances
from monarch.runtime.links.bulk_receiver import BulkReceiver
from monarch.runtime.links.bulk_sender import BulkSender
from monarch.runtime.links.outgoing import Outgoing
from monarch.runtime.links.trees import Trees
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import ProcAgain, ProcDown, ProcsDown

__all__ = ["Partings"]


class Network(Protocol):
    """What is needed of the node."""

    calls: CallTable
    loop: Loop
    known: Acquaintances
    lives: LifeLines
    outgoing: Outgoing
    trees: Trees
    bulk_sender: BulkSender
    bulk_receiver: BulkReceiver

    def handle(self, kind: type, handler: Callable[[Envelope], None]) -> None: ...


class Partings:
    """Ends every wait for a process that is gone, and tells the agents."""

    def __init__(self, node: Network) -> None:
        self.on_peer_down: list[Callable[[Uid, ProcDown], None]] = []
        # A process has given way to a new one of its uid.
        self.on_peer_again: list[Callable[[ProcAgain], None]] = []
        # Deaths of one cause, together, before they are told one by one.
        self.on_deaths: list[Callable[[Sequence[ProcDown], str], None]] = []
        # From which port on calls are kept for the process that comes after one that gives way.
        self.held_from: dict[Uid, int] = {}
        self._node = node
        self._ending: set[Uid] = set()
        node.known.on_expected = self._come_back
        node.known.on_unfit = lambda uid, reason: self.peer_down(ProcDown(uid, reason))
        node.known.on_sought_again = self.forget_peer
        node.handle(ProcDown, self._on_proc_down)
        node.handle(ProcsDown, self._on_procs_down)
        node.handle(ProcAgain, self._on_proc_again)

    def expect_end(self, uid: Uid) -> None:
        """A host was asked to end: that it is lost then, with its procs, is no failure."""
        self._ending.add(uid)

    def expects_end(self, uid: Uid) -> bool:
        return uid in self._ending

    def _come_back(self, uid: Uid) -> None:
        """A new process of that uid is to come."""
        self._node.outgoing.down(uid)
        self._ending.discard(uid)

    def peer_down(self, down: ProcDown) -> None:
        """A process is gone."""
        self.peers_down([down])

    def peers_down(self, downs: Sequence[ProcDown], cause: str = "") -> None:
        """Processes are gone of one cause; a host takes its procs with it."""
        node = self._node
        # Before any wait ends: whoever waited may attach to the host again at once.
        told_one, told_all = list(self.on_peer_down), list(self.on_deaths)
        marked = [(down, f) for down in downs if (f := self._mark_down(down)) is not None]
        lost = [down for down, _ in marked]
        with_them = [(d, f) for d in self._lost_with(lost) if (f := self._mark_down(d)) is not None]
        gone = with_them + marked
        for down in downs:
            node.known.unwatch(down.uid)
        for down, _ in gone:
            node.known.unwatch(down.uid)
            self._end(down.uid)
            node.bulk_sender.forget(down.uid)
        for down, failure in gone:
            node.calls.down(down.uid, failure)
        if gone:
            for told in told_all:
                told([down for down, _ in gone], cause or lost[0].uid)
        for down, _ in gone:
            for tell in told_one:
                tell(down.uid, down)

    def forget_peer(self, uid: Uid) -> None:
        """Close the connection to a process that has left in peace."""
        peer = self._node.known.forget(uid)
        self._end(uid)
        self._node.bulk_sender.part(uid)
        if peer is not None:
            peer.down(MeshFailure(uid, (), "left"))

    def _end(self, uid: Uid) -> None:
        node = self._node
        node.lives.forget(uid)
        node.outgoing.down(uid)
        node.loop.call_soon(functools.partial(node.bulk_receiver.forget, uid))

    def _mark_down(self, down: ProcDown) -> MeshFailure | None:
        """The failure, if it is news."""
        peer, _ = self._node.known.peers.find(ProcAddress(down.uid))
        failure = MeshFailure(
            down.name or down.uid, (), down.reason, "proc", down.host, tuple(down.last_output),
            expected=down.expected, log_file=down.log_file,
        )  # fmt: skip
        if not peer.down(failure):
            return None
        self._node.known.bury(down.uid)
        return failure

    def _lost_with(self, hosts: Sequence[ProcDown]) -> list[ProcDown]:
        """The procs of lost hosts that we know of, as peers or as members of a tree."""
        peers = self._node.known.peers
        found = []
        for down in hosts:
            if not down.uid:
                continue  # What a broken peer says; to be on no host is not to be on that one.
            host = peers.get(down.uid)
            urls = host.address.urls if host is not None else ()
            name = urls[0] if urls else down.host or down.uid
            reason = f"its host {name} was lost: {down.reason}"
            expected = down.expected or down.uid in self._ending
            procs = peers.on_host(down.uid)
            found += [
                ProcDown(uid, reason, name, expected=expected)
                for uid in dict.fromkeys(procs + self._node.trees.procs_on(down.uid))
                if uid != down.uid
            ]
        return found

    def _on_proc_down(self, envelope: Envelope) -> None:
        assert isinstance(envelope.message, ProcDown)
        self.peer_down(envelope.message)

    def _on_procs_down(self, envelope: Envelope) -> None:
        assert isinstance(envelope.message, ProcsDown)
        self.peers_down(envelope.message.downs, envelope.message.cause)

    def _on_proc_again(self, envelope: Envelope) -> None:
        """What was sent to the old process ends with it; what was kept goes to the new one."""
        again = envelope.message
        assert isinstance(again, ProcAgain)
        node, uid = self._node, again.uid
        held_from = self.held_from.pop(uid, None)
        peer = node.known.peers.get(uid)
        if peer is not None and peer.failure is not None:
            return
        if peer is not None:
            peer.again()
        node.bulk_sender.forget(uid)
        node.loop.call_soon(functools.partial(node.bulk_receiver.forget, uid))
        if held_from is None:
            node.outgoing.down(uid)
        if held_from is None or not again.is_clean:
            failure = MeshFailure(
                again.name or uid, (), f"{again.reason}; this message may or may not have been "
                "handled before, later ones go to the new process", "proc", expected=True,
            )  # fmt: skip
            node.calls.down(uid, failure, held_from or node.calls.next_port())
        for tell in self.on_peer_again:
            tell(again)
