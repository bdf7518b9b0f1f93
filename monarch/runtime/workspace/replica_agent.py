"""The host agent's replica: answers the messages of a push, off the I/O thread."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable

from monarch.runtime.host_agent import HostAgent
from monarch.wire.codec import Envelope
from monarch.wire.message import Sync
from monarch_sync.errors import BadMessage
from monarch_sync.messages import Commit, Committed, Refused, Staged, decode, encode
from monarch_sync.replica import Replica

__all__ = ["ReplicaAgent"]

_log = logging.getLogger("monarch.workspace")


class ReplicaAgent:
    """Keeps one replica; disk work happens on a thread of its own, one message at a time."""

    def __init__(self, agent: HostAgent, root: str) -> None:
        self._agent = agent
        self._replica = Replica(root)
        self._folders: tuple[str, ...] = ("",)
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="monarch-replica", daemon=True)
        self._thread.start()
        agent.workspace = root
        agent.workspace_path = self.import_folders
        agent.generation = lambda: self._replica.generation
        agent.workspace_digest = lambda: self._replica.manifest.digest.hex()
        agent.node.handle(Sync, self._on_sync)

    def import_folders(self) -> tuple[str, ...]:
        """Where the workspace's folders have landed: what procs put in front of `sys.path`."""
        root = self._agent.workspace
        return tuple(os.path.join(root, folder) if folder else root for folder in self._folders)

    def _on_sync(self, envelope: Envelope) -> None:
        self._orders.put(lambda: self._answer(envelope))

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                order()
            except Exception:
                _log.exception("a push could not be answered")

    def _answer(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Sync)
        node = self._agent.node
        try:
            message = decode(bytes(envelope.payload))
        except BadMessage as error:
            reply = encode(Refused("bad-message", str(error)))
            node.answer(order.sender, order.port, {"reply": reply})
            return
        if isinstance(message, Commit):
            self._folders = order.folders or ("",)
        answer = self._replica.handle(message, envelope.buffers)
        if isinstance(answer, Staged | Committed):
            _log.debug("generation %d: %s", answer.generation, type(answer).__name__)
        agent = self._agent
        body = {"reply": encode(answer), "root": agent.workspace, "host": agent.name}
        node.answer(order.sender, order.port, body)
        self._replica.settle()

    def close(self) -> None:
        self._orders.put(None)
        self._thread.join(5.0)
        self._replica.close()
