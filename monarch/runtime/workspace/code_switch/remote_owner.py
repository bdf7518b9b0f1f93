"""The client that owns the procs on some hosts, for a push that comes from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import msgspec

from monarch.errors import MonarchError
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.code_switch.audits import ask_audit
from monarch.runtime.workspace.code_switch.owner import OwnerLost
from monarch.runtime.workspace.reload_plan import AuditOutcome, ReloadOutcome, ReloadPlan
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import AnyMessage, Prepare, Revert, Step, StepName, Switch

_ANSWER_SECONDS = 330.0
_INQUIRE_SECONDS = 60.0
"""Much longer than an answer takes that needs no work; owners wait longer for the leader."""


class RemoteOwner:
    """Asks a client to take its processes through a change of generation.

    ``instead_of`` is the name in which we order, where the author has died: ``successor_of`` it.
    """

    def __init__(self, node: Node, client: ProcAddress, *, instead_of: Uid = "") -> None:
        self._node = node
        self._client = client
        self._instead_of = instead_of

    def prepare(self, plan: ReloadPlan) -> ReloadOutcome:
        # It may die while we wait for it, and no other process would tell us.
        self._node.failure_detector.expect(self._client.uid)
        uid, pid = self._node.uid, os.getpid()
        return self._ask(
            lambda port: Prepare(
                generation=plan.generation,
                digest=plan.digest,
                mode=plan.mode,
                port=port,
                sender=uid,
                pid=pid,
            ),
            plan.encode(),
        )

    def fence(
        self, generation: int, attempt: int, seconds: float, *, is_held: bool = False
    ) -> ReloadOutcome:
        uid = self._node.uid
        # As long as it takes: an actor may be in the middle of a long step.
        return self._ask(
            lambda port: Switch(
                generation=generation,
                port=port,
                sender=uid,
                holds=False,
                attempt=attempt,
                seconds=seconds,
                is_held=is_held,
            ),
            seconds=None,
        )

    def lift(self, generation: int, attempt: int, seconds: float) -> ReloadOutcome:
        return self._step(generation, StepName.LIFT, seconds, attempt)

    def halt(self, generation: int, seconds: float) -> ReloadOutcome:
        return self._step(generation, StepName.HALT, seconds)

    def patch(self, generation: int, behind: Sequence[Uid] = ()) -> ReloadOutcome:
        return self._step(generation, StepName.PATCH, behind=behind)

    def go(self, generation: int) -> ReloadOutcome:
        outcome = self._step(generation, StepName.GO)
        self._node.failure_detector.unexpect(self._client.uid)
        return outcome

    def inquire(self, generation: int) -> ReloadOutcome:
        return self._step(generation, StepName.INQUIRE, wait_seconds=_INQUIRE_SECONDS)

    def audit(self, generation: int) -> Promise[AuditOutcome]:
        answer = ask_audit(self._node, self._client, generation)
        found: Promise[AuditOutcome] = Promise()

        def answered() -> None:
            said = answer.value
            found.set(AuditOutcome() if said.error else msgspec.convert(said.body, AuditOutcome))

        answer.on_set(answered)
        return found

    def revert(self, generation: int) -> None:
        try:
            self._ask(lambda port: Revert(generation, port, self._node.uid, self._instead_of))
        finally:
            self._node.failure_detector.unexpect(self._client.uid)

    def _step(
        self,
        generation: int,
        name: StepName,
        seconds: float = 0.0,
        attempt: int = 0,
        behind: Sequence[Uid] = (),
        wait_seconds: float = _ANSWER_SECONDS,
    ) -> ReloadOutcome:
        uid, left = self._node.uid, tuple(behind)
        return self._ask(
            lambda port: Step(
                generation=generation,
                name=name,
                seconds=seconds,
                port=port,
                sender=uid,
                attempt=attempt,
                behind=left,
                instead_of=self._instead_of,
            ),
            seconds=wait_seconds,
        )

    def _ask(
        self,
        make: Callable[[int], AnyMessage],
        data: bytes = b"",
        seconds: float | None = _ANSWER_SECONDS,
    ) -> ReloadOutcome:
        answer = self._node.request(self._client, make, data)
        if not answer.wait(seconds):
            raise MonarchError(
                f"the client that runs there ({self._client.uid}) has not answered for "
                f"{seconds:g} s: is it stopped, or stuck?"
            )
        if answer.value.is_down:
            raise OwnerLost(f"the client that runs there: {answer.value.error}")
        if answer.value.error:
            raise MonarchError(f"the client that runs there: {answer.value.error}")
        return msgspec.convert(answer.value.body, ReloadOutcome)
