"""Watches other hosts on behalf of the procs of this one.

A proc that speaks to a proc of another host must learn when that host is lost. Its own host
agent watches the other one for all its procs, so each pair of hosts exchanges heartbeats once.
"""

from __future__ import annotations

import os

from monarch.runtime.node import Node
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import ProcDown, ProcUp, Watch, WatchHost

__all__ = ["HostWatch"]


class HostWatch:
    """Both ends of the watch. Everything here runs on the node's I/O loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._for: dict[Uid, dict[Uid, ProcAddress]] = {}
        self._by: dict[Uid, ProcAddress] = {}
        node.handle(WatchHost, self._on_watch_host)
        node.peer_down.on_down.append(self._on_peer_down)

    def _on_watch_host(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, WatchHost)
        host, watcher = order.host, order.watcher
        known = self._for.setdefault(host.uid, {})
        known[watcher.uid] = watcher
        if len(known) > 1:
            return
        node = self._node
        if node.failure_of(host.uid) is not None:
            node.peer_down.left(host.uid)
        # Until it says who it is; on this machine its process is watched from then on.
        node.failure_detector.expect(host.uid)
        node.send(host, Watch(host.uid, node.address))

    def introduce(self, watcher: ProcAddress) -> None:
        """Another host agent wants to know when this one ends."""
        self._by[watcher.uid] = watcher
        self._node.send(watcher, ProcUp(self._node.address, os.getpid()))

    def is_up(self, up: ProcUp) -> None:
        """Some process has said who it is: perhaps a host that we watch."""
        uid = up.proc.uid
        if uid in self._for:
            self._node.failure_detector.unexpect(uid)
            self._node.failure_detector.watch(up.proc, up.pid, lambda: self._ended(uid))

    def _ended(self, uid: Uid) -> None:
        self._node.peer_down.report(ProcDown(uid, "the host agent's process ended"))

    def _on_peer_down(self, uid: Uid, down: ProcDown) -> None:
        self._by.pop(uid, None)
        for watchers in self._for.values():
            watchers.pop(uid, None)
        for watcher in self._for.pop(uid, {}).values():
            self._node.send(watcher, down)

    def say_goodbye(self) -> None:
        """This host agent was asked to end: that is no failure."""
        for watcher in self._by.values():
            self._node.send(watcher, ProcDown(self._node.uid, "it was shut down", expected=True))
