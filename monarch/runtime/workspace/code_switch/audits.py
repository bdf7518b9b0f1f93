"""After a switch: finds what still runs old code, here and in the procs that this process owns."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.local_reload import LocalReload
from monarch.runtime.workspace.preparing import AuditEndedError
from monarch.runtime.workspace.reload_plan import AuditOutcome, ReloadPlan
from monarch.wire.address import ProcAddress
from monarch.wire.codec import Envelope
from monarch.wire.message import AuditAsked

_log = logging.getLogger("monarch.reload")

_MOST_KEPT = 8


class Audits:
    """The audits of the last generations. For each there is a promise, which is set when all procs
    have answered.

    One audit runs at a time. The audit of a newer switch ends the audit in progress, because both
    look at the same objects. The end of the process ends it too. An audit does not begin while a
    push or a switch is in progress here, as ``is_busy`` says. ``on_found`` is called with each
    finished audit and its generation.
    """

    def __init__(
        self, node: Node, reload: LocalReload, is_busy: Callable[[], bool] = lambda: False
    ) -> None:
        self._node, self._reload, self._is_busy = node, reload, is_busy
        # A proc that trains without a pause gives its audit little time.
        self.answer_seconds = 30.0
        # A listing of all objects stops the other threads, for a tenth of a second where much is
        # loaded. So the first calls with new code go ahead of it.
        self.delay_seconds = 0.5
        self._audits: dict[int, Promise[AuditOutcome]] = {}
        self._lock = threading.Lock()
        self._ended: Promise[None] = Promise()  # of the audit that is under way
        self._is_closed = False
        self.on_found: list[Callable[[int, AuditOutcome], None]] = []
        self._node.handle(AuditAsked, self._on_asked)

    def begin(self, plan: ReloadPlan, procs: Sequence[ProcAddress]) -> None:
        """Begin to search this process for old code, and ask ``procs`` to search themselves. All of
        them continue with the new code meanwhile.
        """
        promise, ended = self.of(plan.generation), Promise[None]()
        with self._lock:
            earlier, self._ended = self._ended, ended
            is_closed = self._is_closed
        earlier.set(None)
        if is_closed:
            promise.set(AuditOutcome())
            return
        run = functools.partial(self._run, plan, procs, promise, ended)
        threading.Thread(target=run, name="monarch-audit", daemon=True).start()

    def close(self) -> None:
        """End the audit in progress, and begin no other."""
        with self._lock:
            self._is_closed = True
            ended = self._ended
        ended.set(None)

    def of(self, generation: int) -> Promise[AuditOutcome]:
        """Return the promise of the audit after the switch to a generation.

        Only the last few audits are remembered. The promise of an older audit is set to an empty
        outcome.
        """
        with self._lock:
            promise = self._audits.setdefault(generation, Promise())
            for old in sorted(self._audits)[:-_MOST_KEPT]:
                self._audits.pop(old).set(AuditOutcome())
            return promise

    def _run(
        self,
        plan: ReloadPlan,
        procs: Sequence[ProcAddress],
        promise: Promise[AuditOutcome],
        ended: Promise[None],
    ) -> None:
        asked = [self._node.ask(proc, AuditAsked(plan.generation)) for proc in procs]
        outcome = AuditOutcome()
        try:
            while not ended.wait(self.delay_seconds):
                if not self._is_busy():
                    outcome = self._reload.audit(plan, lambda: ended.is_set)
                    break
        except AuditEndedError:
            pass
        except Exception:
            _log.exception("the audit of generation %d failed", plan.generation)
        deadline = time.monotonic() + self.answer_seconds
        for answer in asked:
            _wait_for_one((answer, ended), deadline - time.monotonic())
            if answer.is_set and not answer.value.error:
                outcome.add(msgspec.convert(answer.value.answer, AuditOutcome))
        if ended.is_set:
            promise.set(AuditOutcome())
            return
        promise.set(outcome)
        for hear in self.on_found:
            hear(plan.generation, outcome)

    def _on_asked(self, envelope: Envelope[AuditAsked]) -> None:
        order = envelope.message
        promise = self.of(order.generation)
        promise.on_set(lambda: self._node.answer(order, msgspec.to_builtins(promise.value)))


def _wait_for_one(promises: Sequence[Promise[Any]], seconds: float) -> None:
    """Wait until one of the promises is set, or until ``seconds`` have passed."""
    is_kept: Promise[None] = Promise()
    for promise in promises:
        promise.on_set(lambda: is_kept.set(None))
    is_kept.wait(max(0.0, seconds))
