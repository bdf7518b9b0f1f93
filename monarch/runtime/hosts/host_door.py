"""Admits one client at a time to a host, and clears up after it."""

from __future__ import annotations

import os
from collections.abc import Callable

from monarch.config import settings
from monarch.runtime.hosts.host_agent import HostAgent
from monarch.wire.address import Uid
from monarch.wire.message import Attach, Attached, Detach, ProcDown


class HostDoor:
    """The host's one client. Its procs are stopped when it leaves, dies, or is replaced.

    A second client is refused with the first one's name, unless it asks to take over.
    """

    def __init__(self, agent: HostAgent, forget: Callable[[], None] = lambda: None) -> None:
        self._agent = agent
        self._forget = forget
        self._node = agent.node
        self.client: Attach | None = None
        self._node.on(Attach, self._on_attach)
        self._node.on(Detach, self._on_detach)
        self._node.peer_down.on_down.append(self._on_peer_down)

    def _on_attach(self, attach: Attach) -> None:
        holder = self.client
        if holder is not None and holder.client.uid != attach.client.uid:
            if not attach.takeover:
                why = f"in use by {holder.name}"
                self._node.answer(attach, Attached(holder=holder.name), why)
                return
            self._see_off(holder.client.uid)
        self.client = attach
        self._agent.admit(attach.client)
        node = self._node
        uid = attach.client.uid
        node.failure_detector.watch(attach.client, attach.pid, lambda: self._process_ended(uid))
        attached = Attached(
            machine=node.address.machine,
            pid=os.getpid(),
            host=self._agent.name,
            workspace=self._agent.workspace.root,
            generation=self._agent.workspace.generation,
            digest=self._agent.workspace.digest,
        )
        node.answer(attach, attached)

    def _process_ended(self, uid: Uid) -> None:
        self._node.peer_down.report(ProcDown(uid, "the client's process ended", expected=True))

    def _on_detach(self, detach: Detach) -> None:
        self._see_off(detach.client, settings().exit_timeout_seconds)

    def _on_peer_down(self, uid: Uid, down: ProcDown) -> None:
        self._see_off(uid)

    def _see_off(self, uid: Uid, grace_seconds: float = 0.0) -> None:
        """Handle that the client has left: stop what it ran here, and be ready for the next
        client."""
        if self.client is None or self.client.client.uid != uid:
            return
        self.client = None
        self._agent.admit(None)
        self._agent.stop(list(self._agent.procs), grace_seconds, "its client has left")
        self._agent.bulletins.forget(uid)
        self._node.peer_down.left(uid)
        self._forget()
