"""Handles the ends of other processes: they die, are replaced, or leave.

The failure detector and the host agents find out; this is the node's membership: it marks the
process as gone, has every part of the node forget it (``Network.on_gone``), ends the calls that
wait for it, and tells the agents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monarch.errors import MeshFailure
from monarch.runtime.links.address_book import AddressBook
from monarch.runtime.links.network import Gone, Network
from monarch.runtime.links.trees import Trees
from monarch.wire.address import Uid
from monarch.wire.message import ProcAgain, ProcDown, ProcsDown


def failure_of(down: ProcDown) -> MeshFailure:
    """Return the failure that describes the end of a process."""
    return MeshFailure(
        down.name or down.uid,
        (),
        down.reason,
        "proc",
        host=down.host,
        last_output=tuple(down.last_output),
        expected=down.expected,
        log_file=down.log_file,
    )


class PeerDown:
    """Ends every wait for a process that is gone, and tells the agents."""

    def __init__(self, node: Network, book: AddressBook, trees: Trees) -> None:
        #: Called with each process that is down, on any thread.
        self.on_down: list[Callable[[Uid, ProcDown], None]] = [
            trees.host_down,
            lambda uid, down: trees.proc_down(uid),
        ]
        #: Called when a process was replaced by a new one of its uid.
        self.on_again: list[Callable[[ProcAgain], None]] = []
        #: Called with all deaths of one cause, and the cause, before `on_down` gets each of them.
        self.on_deaths: list[Callable[[Sequence[ProcDown], str], None]] = []
        #: By process that gives way: the first port whose call is kept for the process after it.
        self.held_from: dict[Uid, int] = {}
        self._node = node
        self._book = book
        self._trees = trees
        #: The hosts that were asked to end.
        self._ending: set[Uid] = set()
        node.on_gone.append(self._forget_gone)
        node.on(ProcDown, self._on_proc_down)
        node.on(ProcsDown, self._on_procs_down)
        node.on(ProcAgain, self._on_proc_again)

    def expect_end(self, uid: Uid) -> None:
        """Expect the end of a host that was asked to end: its loss, with its procs, is no
        failure."""
        self._ending.add(uid)

    def expects_end(self, uid: Uid) -> bool:
        return uid in self._ending

    def _forget_gone(self, uid: Uid, how: Gone) -> None:
        if how is Gone.EXPECTED:
            self._ending.discard(uid)

    def report(self, down: ProcDown) -> None:
        """Handle the end of a process."""
        self.report_all([down])

    def report_all(self, downs: Sequence[ProcDown], cause: str = "") -> None:
        """Report the deaths of processes that have one cause; a host's death includes its procs."""
        node = self._node
        # Before any wait ends, as a thread that waited may attach to the host again at once.
        on_down, on_deaths = list(self.on_down), list(self.on_deaths)
        marked = [(down, f) for down in downs if (f := self._mark_down(down)) is not None]
        lost = [down for down, _ in marked]
        with_them = [(d, f) for d in self._lost_with(lost) if (f := self._mark_down(d)) is not None]
        gone = with_them + marked
        for down in downs:
            self._book.unwatch(down.uid)
        for down, _ in gone:
            self._forget(down.uid, Gone.DOWN)
        for down, failure in gone:
            node.calls.down(down.uid, failure)
        if gone:
            for tell_all in on_deaths:
                tell_all([down for down, _ in gone], cause or lost[0].uid)
        for down, _ in gone:
            for tell in on_down:
                tell(down.uid, down)

    def left(self, uid: Uid) -> None:
        """Close the connection to a process that has left as planned."""
        self._forget(uid, Gone.LEFT)

    def _forget(self, uid: Uid, how: Gone) -> None:
        for forget in self._node.on_gone:
            forget(uid, how)

    def _mark_down(self, down: ProcDown) -> MeshFailure | None:
        """Mark a process as down; return the failure, or None if it was known to be down."""
        failure = failure_of(down)
        return failure if self._book.mark_down(down.uid, failure) else None

    def _lost_with(self, hosts: Sequence[ProcDown]) -> list[ProcDown]:
        """Return a ``ProcDown`` for each proc that is lost because one of the ``hosts`` is.

        Only procs that this process knows are covered: its peers, and procs to which it sends along
        trees.
        """
        peers = self._book.peers
        procs_down = []
        for down in hosts:
            if not down.uid:
                continue  # From a broken peer: "" is the host of the processes without a host.
            host = peers.get(down.uid)
            urls = host.address.urls if host is not None else ()
            name = urls[0] if urls else down.host or down.uid
            reason = f"its host {name} was lost: {down.reason}"
            expected = down.expected or down.uid in self._ending
            procs = peers.on_host(down.uid)
            procs_down += [
                ProcDown(uid, reason, name, expected=expected)
                for uid in dict.fromkeys(procs + self._trees.procs_on(down.uid))
                if uid != down.uid
            ]
        return procs_down

    def _on_proc_down(self, down: ProcDown) -> None:
        self.report(down)

    def _on_procs_down(self, ended: ProcsDown) -> None:
        self.report_all(ended.downs, ended.cause)

    def _on_proc_again(self, again: ProcAgain) -> None:
        """Handle that a new process has replaced a proc.

        Messages that were kept for the new process go to it. Other calls to the old process fail,
        unless it ended cleanly: then it has answered all calls before the kept messages.
        """
        node, uid = self._node, again.uid
        held_from = self.held_from.pop(uid, None)
        peer = self._book.peers.get(uid)
        if peer is not None and peer.failure is not None:
            return
        if peer is not None:
            peer.again()
        self._forget(uid, Gone.REPLACED if held_from is None else Gone.HANDED_OVER)
        if held_from is None or not again.is_clean:
            reason = (
                f"{again.reason}; this message may or may not have been handled before, later ones "
                "go to the new process"
            )
            failure = MeshFailure(again.name or uid, (), reason, "proc", expected=True)
            node.calls.down(uid, failure, held_from or node.calls.next_port())
        for tell in self.on_again:
            tell(again)
