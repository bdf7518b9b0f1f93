"""The client that owns the procs on some hosts, for a push from another program."""

from __future__ import annotations

import os

import msgspec

from monarch.errors import MonarchError
from monarch.runtime.answers import Response
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.code_switch.host_files import FilesHere
from monarch.runtime.workspace.code_switch.proposing import OwnerLost
from monarch.runtime.workspace.reload_plan import AuditOutcome, ReloadOutcome, ReloadPlan, Switched
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import AuditAsked, Body, Order, SwitchOrder

_ANSWER_SECONDS = 330.0


class RemoteOwner:
    """Asks another client to prepare new code, and then to drive its own switch to it."""

    def __init__(self, node: Node, client: ProcAddress) -> None:
        self._node = node
        self._client = client

    @property
    def uid(self) -> Uid:
        return self._client.uid

    def prepare(self, plan: ReloadPlan) -> ReloadOutcome:
        # It may die while we wait for it, and no other process would tell us.
        self._node.failure_detector.expect(self.uid)
        order = Order(SwitchOrder.PREPARE, plan.generation, pid=os.getpid())
        answer = self._node.ask(self._client, order, plan.encode())
        return msgspec.convert(self._answer(answer, _ANSWER_SECONDS), ReloadOutcome)

    def switch(
        self, plan: ReloadPlan, own_files: FilesHere
    ) -> tuple[Switched, BaseException | None]:
        # As long as it takes: an actor may be in the middle of a long step.
        answer = self._node.ask(self._client, Order(SwitchOrder.SWITCH, plan.generation))
        error: BaseException | None = None
        try:
            answer.wait()
        except BaseException as raised:
            error = raised
            self._node.ask(self._client, Order(SwitchOrder.REVERT, plan.generation))
        try:
            return msgspec.convert(self._answer(answer, None), Switched), error
        finally:
            self._node.failure_detector.unexpect(self.uid)

    def call_off(self, generation: int) -> None:
        try:
            answer = self._node.ask(self._client, Order(SwitchOrder.REVERT, generation))
            self._answer(answer, _ANSWER_SECONDS)
        finally:
            self._node.failure_detector.unexpect(self.uid)

    def audit(self, generation: int) -> Promise[AuditOutcome]:
        answer = self._node.ask(self._client, AuditAsked(generation))
        audit: Promise[AuditOutcome] = Promise()

        def answered() -> None:
            response = answer.value
            body = {} if response.error else response.answer
            audit.set(msgspec.convert(body, AuditOutcome))

        answer.on_set(answered)
        return audit

    def _answer(self, answer: Promise[Response[Body]], seconds: float | None) -> Body:
        if not answer.wait(seconds):
            raise MonarchError(
                f"the client that runs there ({self.uid}) has not answered for "
                f"{seconds:g} s: is it stopped, or stuck?"
            )
        if answer.value.is_down:
            raise OwnerLost(f"the client that runs there: {answer.value.error}")
        if answer.value.error:
            raise MonarchError(f"the client that runs there: {answer.value.error}")
        return answer.value.answer
