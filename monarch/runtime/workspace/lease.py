"""Which author pushes to a host, from the first message of a push until its files are shown."""

from __future__ import annotations

from monarch.runtime.hosts.hosted_workspace import WorkspaceHost
from monarch.wire.address import Uid
from monarch.wire.message import ProcDown


class Lease:
    """Lets one author push at a time. The lease ends with the push, or with the author; the staged
    files stay, so that an owner which was told to switch can still have them shown.
    """

    def __init__(self, agent: WorkspaceHost) -> None:
        self._agent = agent
        self._node = agent.node
        self._holder: Uid = ""
        self._visitors: set[Uid] = set()
        self.author = ""
        self.generation = 0
        self._node.peer_down.on_down.append(self._on_peer_down)

    def is_anothers(self, sender: Uid) -> bool:
        """Return whether another author holds the lease, so that ``sender`` has to wait."""
        return self._holder not in ("", sender)

    def take(self, sender: Uid, pid: int, author: str, generation: int) -> None:
        """Give the lease to ``sender``, which pushes from now on."""
        self.author, self.generation = author, generation
        if self._holder == sender:
            return
        self._holder = sender
        if pid and sender not in self._visitors and not self._is_client(sender):
            self._visitors.add(sender)
            address = self._node.address_of(sender)
            self._node.failure_detector.watch(address, pid, lambda: self._has_left(sender))

    def end(self) -> None:
        """End the lease, because the push is over here."""
        sender, self._holder = self._holder, ""
        if sender and not self._is_client(sender):
            self._node.failure_detector.unexpect(sender)

    def _has_left(self, sender: Uid) -> None:
        self._on_peer_down(sender, ProcDown(sender, "it has ended"))
        self._node.peer_down.left(sender)

    def _is_client(self, sender: Uid) -> bool:
        """Return whether the sender is our client, which is watched already, as are its procs
        here."""
        client = self._agent.client
        return (client is not None and client.uid == sender) or sender in self._agent.procs

    def _on_peer_down(self, uid: Uid, down: ProcDown) -> None:
        self._visitors.discard(uid)
        if uid == self._holder:
            self._holder = ""
