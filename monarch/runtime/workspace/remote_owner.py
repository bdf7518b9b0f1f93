"""The client that owns the procs on some hosts, for a push that comes from elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from monarch.errors import MonarchError
from monarch.runtime.node import Node
from monarch.runtime.workspace.reload_plan import ReloadOutcome, ReloadPlan
from monarch.wire.address import ProcAddress
from monarch.wire.message import AnyMessage, Prepare, Revert, Switch

__all__ = ["RemoteOwner"]


class RemoteOwner:
    """Asks a client to take its processes through a change of generation."""

    def __init__(self, node: Node, client: ProcAddress) -> None:
        self._node = node
        self._client = client

    def prepare(self, plan: ReloadPlan) -> ReloadOutcome:
        uid = self._node.uid
        return self._ask(
            lambda port: Prepare(plan.generation, plan.digest, plan.mode, port, uid),
            msgspec.msgpack.encode(plan),
        )

    def switch(self, generation: int) -> ReloadOutcome:
        return self._ask(lambda port: Switch(generation, port, self._node.uid))

    def revert(self, generation: int) -> None:
        self._ask(lambda port: Revert(generation, port, self._node.uid))

    def _ask(self, make: Callable[[int], AnyMessage], data: bytes = b"") -> ReloadOutcome:
        answer = self._node.request(self._client, make, data)
        answer.wait()
        if answer.value.error:
            raise MonarchError(f"the client that runs there: {answer.value.error}")
        return msgspec.convert(answer.value.body, ReloadOutcome)
