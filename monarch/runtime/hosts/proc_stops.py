"""Procs of a host that were asked to end; they are killed when their time is over."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence

from monarch.runtime.hosts.host_proc import HostProc
from monarch.runtime.node import Node
from monarch.wire.address import Uid
from monarch.wire.message import StopSelf


class ProcStops:
    """Stops procs. All methods run on the node's I/O loop.

    ``on_exited`` is called for a proc that is stopped before its template has forked it.
    """

    def __init__(
        self,
        node: Node,
        procs: Mapping[Uid, HostProc],
        on_exited: Callable[[Uid, int | None], None],
    ) -> None:
        self._node = node
        self._procs = procs
        self._on_exited = on_exited
        self._pending: list[tuple[set[Uid], Callable[[], None]]] = []

    def stop(
        self, uids: Sequence[Uid], grace_seconds: float, reason: str, done: Callable[[], None]
    ) -> None:
        """End the existing procs among ``uids``; ``done`` is called once they are gone."""
        procs = [self._procs[uid] for uid in uids if uid in self._procs]
        if not procs:
            done()
            return
        self._pending.append(({proc.uid for proc in procs}, done))
        for proc in procs:
            proc.stop_reason = proc.stop_reason or reason
            if not proc.pid:
                self._unmake(proc)
            elif grace_seconds > 0 and proc.address is not None:
                self._node.send(proc.address, StopSelf(reason))
            else:
                proc.launcher.kill(proc.uid)
        if grace_seconds > 0:
            self._node.loop.call_later(grace_seconds, lambda: self._kill_rest(procs))

    def ended(self, uid: Uid) -> None:
        """Handle the end of a proc: call ``done`` of each stop whose procs have all ended."""
        for stop in list(self._pending):
            missing, done = stop
            missing.discard(uid)
            if not missing:
                self._pending.remove(stop)
                done()

    def _unmake(self, proc: HostProc) -> None:
        """End a proc that has not been forked yet: its template may be busy importing for long."""
        # Behind the order to fork it; so it is killed before it has done anything.
        proc.launcher.kill(proc.uid)
        self._node.loop.call_soon(lambda: self._unmade(proc))

    def _unmade(self, proc: HostProc) -> None:
        # Asked twice to end it, there may be the one in its place by now.
        if self._procs.get(proc.uid) is proc:
            self._on_exited(proc.uid, -signal.SIGKILL)

    def _kill_rest(self, procs: Sequence[HostProc]) -> None:
        for proc in procs:
            if self._procs.get(proc.uid) is proc:
                proc.launcher.kill(proc.uid)
