"""The failure detector: it notices that another process has ended.

On this machine the kernel reports an end at once (a pidfd), and only of a dead process. Processes
elsewhere send heartbeats; a process that is silent for too long counts as dead.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from monarch.config import settings
from monarch.core.heartbeats import Heartbeats
from monarch.runtime.links.network import Gone, Network
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import Heartbeat, ProcDown


class FailureDetector:
    """Watches processes whose end matters to this process. A process that falls silent is reported
    to the node as down."""

    def __init__(self, node: Network) -> None:
        self._node = node
        self._liveness = Heartbeats(
            settings().heartbeat_seconds, settings().heartbeat_timeout_seconds
        )
        self._pidfds: dict[Uid, tuple[int, int]] = {}  # its descriptor, and the process's number
        self._is_closed = False
        node.on_gone.append(self._forget_gone)
        node.on(Heartbeat, self.on_heartbeat)

    def start(self) -> None:
        self._node.loop.call_later(settings().heartbeat_seconds, self._beat)

    def watch(self, peer: ProcAddress, pid: int, gone: Callable[[], None]) -> None:
        """Notice when a process ends.

        For a process on this machine, ``gone`` is called as soon as it ends; a process that is only
        stopped (Ctrl-Z, a debugger) counts as alive. A process on another machine counts as down
        when its heartbeats fail to come. If a process is watched twice, only the first ``gone`` is
        called.
        """
        is_here = peer.machine == self._node.address.machine
        if not (is_here and self._watch_pid(peer.uid, pid, gone)):
            self.expect(peer.uid)

    def expect(self, uid: Uid) -> None:
        """Expect signs of life of a process from now on."""
        self._liveness.expect(uid, self._node.loop.time())

    def heard(self, uid: Uid) -> None:
        """Note a sign of life of a process."""
        self._liveness.heard(uid, self._node.loop.time())

    def unexpect(self, uid: Uid) -> None:
        """Stop expecting signs of life of a process."""
        self._liveness.forget(uid)

    def _forget_gone(self, uid: Uid, how: Gone) -> None:
        if how in (Gone.DOWN, Gone.LEFT):
            self._liveness.forget(uid)
            self._node.loop.call_soon(lambda: self._let_go(uid))

    def _watch_pid(self, uid: Uid, pid: int, gone: Callable[[], None]) -> bool:
        if not hasattr(os, "pidfd_open"):
            return False
        loop = self._node.loop
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            loop.call_soon(gone)
            return True
        except OSError:
            return False

        def ended() -> None:
            self._let_go(uid)
            gone()

        def watch() -> None:
            if self._pidfds.get(uid, (-1, -1))[1] == pid:
                os.close(fd)
                return
            self._let_go(uid)
            self._pidfds[uid] = fd, pid
            loop.add_reader(fd, ended)

        loop.call_soon(watch)
        return True

    def _let_go(self, uid: Uid) -> None:
        fd, _ = self._pidfds.pop(uid, (-1, -1))
        if fd >= 0:
            self._node.loop.remove_reader(fd)
            os.close(fd)

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        if self._liveness.is_expected(heartbeat.sender):
            self.heard(heartbeat.sender)
        else:
            # It expects heartbeats of us, though we do not depend on its own.
            self._send_heartbeat(heartbeat.sender)

    def _beat(self) -> None:
        if self._is_closed:
            return
        # Set first: if something goes wrong with one peer, the others still need their heartbeats.
        self.start()
        now = self._node.loop.time()
        for uid in self._liveness.due(now):
            self._send_heartbeat(uid)
        for uid, seconds in self._liveness.lost(now):
            self._node.report_down(ProcDown(uid, f"nothing was heard of it for {seconds:.1f} s"))

    def _send_heartbeat(self, uid: Uid) -> None:
        self._node.send(self._node.address_of(uid), Heartbeat(self._node.uid))

    def stop(self) -> None:
        """Send no more heartbeats. From any thread."""
        self._is_closed = True

    def close(self) -> None:
        """Stop watching. On the loop."""
        for uid in list(self._pidfds):
            self._let_go(uid)
