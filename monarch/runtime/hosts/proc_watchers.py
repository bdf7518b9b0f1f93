"""Reports to other processes that a proc of the host is up, was replaced, or has ended.

A proc's owner always gets the report, and so does the host's own node. A watcher has asked for it,
maybe before there was an order to make the proc: a reference may arrive sooner than the order. An
end watcher sends to the proc through this host, and is told only of its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from monarch.runtime.hosts.host_proc import HostProc
from monarch.runtime.node import Node
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import ProcAgain, ProcDown, ProcsDown, ProcUp

_MAX_ENDS = 10_000
"""How many ends of procs are remembered. A question about an older one is answered, after a moment,
with "its host agent does not know it": the proc is gone in either case."""

_Addresses = dict[Uid, ProcAddress]


class ProcWatchers:
    """The watchers of a host's procs. All methods run on the node's I/O loop.

    ``is_coming`` returns whether the host has received the order to make a proc, but has not
    carried it out yet.
    """

    def __init__(
        self, node: Node, host: str, procs: Mapping[Uid, HostProc], is_coming: Callable[[Uid], bool]
    ) -> None:
        self._node = node
        self._host = host
        self._procs = procs
        self._is_coming = is_coming
        #: By proc, which may not exist yet: the processes that asked for reports.
        self._watchers: dict[Uid, _Addresses] = {}
        self._end_watchers: dict[Uid, _Addresses] = {}
        #: The last ends, by proc.
        self._ends: dict[Uid, ProcDown] = {}
        #: How much later than a reference to a proc the order to make it may arrive.
        self.early_seconds = 5.0
        #: The deaths that one message will report, each with those whom it is reported to.
        self._lost_together: list[tuple[ProcDown, _Addresses]] = []
        node.peer_down.on_down.append(self._on_peer_down)

    def watch(self, uid: Uid, watcher: ProcAddress) -> None:
        """Report to ``watcher`` when a proc is up, maybe at once, and when it ends."""
        proc = self._procs.get(uid)
        if proc is None and uid in self._ends:
            self._node.send(watcher, self._ends[uid])
            return
        if proc is not None and watcher.uid == self._node.uid:
            return  # We hear of our own procs in any case.
        if proc is None and uid not in self._watchers:
            self._give_up_later(uid)
        self._watchers.setdefault(uid, {})[watcher.uid] = watcher
        if proc is not None and proc.address is not None:
            self._node.send(watcher, ProcUp(proc.address, proc.pid))

    def watch_end(self, uid: Uid, watcher: ProcAddress) -> None:
        """Report to ``watcher`` when a proc ends; the proc may not exist yet."""
        if uid in self._ends:
            self._node.send(watcher, self._ends[uid])
        else:
            self._end_watchers.setdefault(uid, {})[watcher.uid] = watcher

    def forget_end_watchers(self) -> None:
        """Forget the end watchers of procs that do not exist, because no client will order these
        procs any more.
        """
        by_proc = self._end_watchers.items()
        self._end_watchers = {uid: watchers for uid, watchers in by_proc if uid in self._procs}

    def made(self, uid: Uid) -> None:
        """Handle a new proc of this host. The agent itself is removed from the proc's watchers,
        because it hears in any case that the proc is up.
        """
        self._watchers.get(uid, {}).pop(self._node.uid, None)  # Told in any case.

    def up(self, up: ProcUp) -> None:
        for watcher in self._watchers.get(up.proc.uid, {}).values():
            self._node.send(watcher, up)

    def given_way(self, proc: HostProc, again: ProcAgain) -> None:
        """Report to the owner and the watchers of a proc that a new process has replaced it. They
        go on to watch the new process.
        """
        watchers = {**self._watchers.get(proc.uid, {}), **self._end_watchers.get(proc.uid, {})}
        for address in self._with_owner(proc, watchers).values():
            self._node.send(address, again)

    def never_began(self, owner: ProcAddress, uid: Uid, error: Exception) -> None:
        """Report that a proc could not be made."""
        down = ProcDown(uid, f"it could not be started: {error}", self._host)
        self._remember_end(down)
        for address in {owner.uid: owner, **self._take(uid)}.values():
            self._node.send(address, down)

    def ended(self, proc: HostProc, down: ProcDown, *, is_shared: bool) -> None:
        """Report the end of a proc to its watchers and its owner.

        ``is_shared``: other procs end of the same cause now; one report about all of them is sent.
        """
        self._remember_end(down)
        watchers = self._with_owner(proc, self._take(proc.uid))
        if is_shared:
            if not self._lost_together:
                self._node.loop.call_soon(self._tell_lost)
            self._lost_together.append((down, watchers))
            return
        for address in watchers.values():
            self._node.send(address, down)

    def _with_owner(self, proc: HostProc, others: _Addresses) -> _Addresses:
        return {proc.owner.uid: proc.owner, **others, self._node.uid: self._node.address}

    def _take(self, uid: Uid) -> _Addresses:
        return {**self._watchers.pop(uid, {}), **self._end_watchers.pop(uid, {})}

    def _tell_lost(self) -> None:
        lost, self._lost_together = self._lost_together, []
        cause = f"template of {lost[0][0].uid}"
        for uid, address in {uid: a for _, watchers in lost for uid, a in watchers.items()}.items():
            downs = tuple(down for down, watchers in lost if uid in watchers)
            self._node.send(address, ProcsDown(downs, cause))

    def _remember_end(self, down: ProcDown) -> None:
        """Remember how a proc ended, for later questions. Only the latest ends are remembered."""
        self._ends[down.uid] = down
        if len(self._ends) > _MAX_ENDS:
            del self._ends[next(iter(self._ends))]

    def _give_up_later(self, uid: Uid) -> None:
        self._node.loop.call_later(self.early_seconds, lambda: self._give_up(uid))

    def _give_up(self, uid: Uid) -> None:
        """Tell the watchers of a proc that it was never ordered."""
        if uid in self._procs:
            return
        if self._is_coming(uid):
            self._give_up_later(uid)
            return
        unknown = ProcDown(uid, "its host agent does not know it", self._host)
        for watcher in self._watchers.pop(uid, {}).values():
            self._node.send(watcher, unknown)

    def _on_peer_down(self, uid: Uid, down: ProcDown) -> None:
        # It runs on the thread that noticed the end.
        self._node.loop.call_soon(lambda: self._forget(uid))

    def _forget(self, gone: Uid) -> None:
        """Forget a watcher, because its process is gone."""
        for watchers in self._watchers.values():
            watchers.pop(gone, None)
        for uid, end_watchers in dict(self._end_watchers).items():
            if end_watchers.pop(gone, None) is not None and not end_watchers:
                del self._end_watchers[uid]
