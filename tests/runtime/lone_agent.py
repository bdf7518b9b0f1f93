"""A host agent by itself, and somebody who speaks to it: no process is made, and no mesh."""

from __future__ import annotations

from typing import Any

from monarch.runtime.hosts.host_agent import HostAgent
from monarch.runtime.hosts.host_door import HostDoor
from monarch.runtime.hosts.launcher import StartLauncher
from monarch.runtime.node import Node
from monarch.runtime.procs.proc_config import ProcConfig
from monarch.wire.codec import Envelope
from monarch.wire.message import Inspect, ProcDown

_SECONDS = 30


class FakeLauncher:
    """Takes the orders of a host agent and starts nothing."""

    def __init__(self, loop: Any, on_forked: Any, on_exited: Any, command: Any) -> None:
        self.forked: list[str] = []
        self._on_exited = on_exited
        self.environment: dict[str, str] = {}
        self.is_alive = True

    def fork(self, config: ProcConfig, out: int, err: int, setup: bytes = b"") -> None:
        self.forked.append(config.uid)

    def drift(self) -> dict[str, str | None]:
        return {}

    def learn(self, modules: Any, done: Any) -> None: ...

    def preload(self, modules: Any, done: Any = None) -> None:
        if done:
            done({})

    def kill(self, uid: str) -> None:
        self._on_exited(uid, -9)

    def close(self) -> None: ...


class LoneAgent:
    """A host agent on a node of its own, and a node that speaks to it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.start_launcher: StartLauncher = FakeLauncher
        self.node = Node("host")
        self.agent = HostAgent(
            self.node, folder, start_launcher=lambda *about: self.start_launcher(*about)
        )
        self.door = HostDoor(self.agent)
        self.node.handle(Inspect, self._on_inspect)
        self.node.start()
        self.node.listen(f"ipc://{folder}/host")
        self.peer = Node("peer")
        self.peer.start()
        self.peer.listen(f"ipc://{folder}/peer")
        self.peer.handle(ProcDown, lambda envelope: self.downs.append(envelope.message))
        self.downs: list[Any] = []

    def _on_inspect(self, envelope: Envelope[Inspect]) -> None:
        order = envelope.message
        self.node.answer(order, self.agent.describe())

    def send(self, one: Any) -> None:
        self.peer.send(self.node.address, one)

    def answers(self) -> None:
        """It still answers a question."""
        outcome = self.peer.ask(self.node.address, Inspect())
        assert outcome.wait(_SECONDS)
        assert not outcome.value.error

    def close(self) -> None:
        self.node.loop.run_on_loop(self.agent.close)
        self.node.close()
        self.peer.close()
