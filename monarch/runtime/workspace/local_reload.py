"""A change of code in this process: prepared, switched to between two messages, reverted."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence

from monarch.config import settings
from monarch.core.event_ring import PUSH
from monarch.runtime.cells.actor_cell import ActorCell
from monarch.runtime.cells.reload_round import ReloadRound
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.runtime.workspace.preparing import Preparation, Preparing
from monarch.runtime.workspace.reload_plan import (
    AuditOutcome,
    RefusedFile,
    ReloadOutcome,
    ReloadPlan,
)
from monarch.runtime.workspace.reload_words import ReloadWords
from monarch.wire.address import Uid
from monarch_reload import CONFIG_SUFFIXES, ReloadError, ReloadReport

_log = logging.getLogger("monarch.reload")


class LocalReload:
    """This process's part in each step of a change of code. ``label`` is its name for people."""

    def __init__(self, agent: ProcAgent, roots: Sequence[str], label: str) -> None:
        self._agent = agent
        self.label = label
        self._words = ReloadWords(agent, label)
        self._preparing = Preparing(agent, roots)
        self._prepared: dict[int, Preparation] = {}
        self._committed: dict[int, Preparation] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        self._preparing.close()

    def prepare(self, plan: ReloadPlan) -> ReloadOutcome:
        """Prepare a plan; nothing visible changes."""
        with self._lock:
            self._abandon()
            try:
                step = self._preparing.step(plan)
            except ReloadError as error:
                return self._words.of_refused(error)
            if step is not None:
                self._prepared[plan.generation] = step
            return self._words.of_prepared(step)

    def prepare_class(self, plan: ReloadPlan, live: type) -> ReloadOutcome:
        """Prepare the author's own part in an upgrade: the class that its references to the mesh
        use."""
        assert plan.upgrade is not None
        with self._lock:
            self._abandon()
            try:
                step = self._preparing.of_class(plan, live, plan.upgrade, adds_globals=False)
            except ReloadError as error:
                return ReloadOutcome(refused=[self._words.refusal(error)])
            self._prepared[plan.generation] = step
        return ReloadOutcome()

    def catch_up(self, generation: int) -> ReloadOutcome:
        """Prepare modules that were imported since ``prepare``, now that no thread imports any
        more."""
        with self._lock:
            step = self._prepared.get(generation)
        if step is None or not self._preparing.has_missed(step):
            return ReloadOutcome()
        outcome = self.prepare(step.plan)
        return ReloadOutcome(refused=outcome.refused, is_replaced=outcome.is_replaced)

    def switch(self, generation: int, exempt: Collection[Uid] = ()) -> ReloadOutcome:
        """Switch to the generation; return when all actors but ``exempt`` have been notified.

        Call it while no actor runs. A second call returns the same outcome.
        """
        with self._lock:
            step = self._committed.get(generation)
            if step is None:
                step = self._prepared.pop(generation, None)
                if step is None:
                    return self._unprepared(generation)
                self._committed = {generation: step}
                self._patch(step, exempt)
        step.said.wait()
        return step.said.value

    def _unprepared(self, generation: int) -> ReloadOutcome:
        """Return the outcome for a generation that was not prepared here: this process started on
        it, or it is an upgrade of other procs."""
        outcome = ReloadOutcome(num_procs=1)
        if self._agent.generation < generation:
            outcome.refused.append(RefusedFile(self.label, "nothing was prepared here"))
        return outcome

    def _patch(self, step: Preparation, exempt: Collection[Uid]) -> None:
        """Change the code, and notify the actors on threads of their own. Call it under the
        lock."""
        if step.is_replaced:
            step.ready.abort()
            step.said.set(self._words.of_replaced(step))
            return
        started = time.perf_counter()
        step.ready.label_before = f"generation {self._agent.generation}"
        try:
            report = step.ready.commit()
        except Exception as error:
            known = isinstance(error, ReloadError)
            reload_error = error if known else ReloadError.of_exception(error, "commit")
            refusal = self._words.refusal(reload_error)  # type: ignore[arg-type]
            step.said.set(ReloadOutcome(num_procs=1, refused=[refusal]))
            return
        report.files = step.files
        step.report = report
        self._extend_path(step.plan.paths.get(self._agent.host.uid, ()))
        step.generation_before = self._agent.generation
        if step.plan.generation > 0:
            change = step.plan.code_change(self._agent.generation)
            step.codes_before = self._agent.code_states.switched(change)
            self._agent.gate.switch(
                step.plan.generation, divides=bool(change.others), changes=_is_news(report)
            )
            if (ring := self._agent.node.ring) is not None:
                ring.note(PUSH, step.plan.generation, ", ".join(sorted(step.files)[:20]))
        outcome = self._words.of_committed(step, report, time.perf_counter() - started)
        self._tell(step, outcome, exempt)

    def _tell(self, step: Preparation, outcome: ReloadOutcome, exempt: Collection[Uid]) -> None:
        """Notify the actors; if one raises, the new code is refused for all."""
        report = step.report
        assert report is not None
        if not _is_news(report):
            step.said.set(outcome)
            return

        def over(cell: ActorCell | None, error: BaseException | None) -> None:
            if cell is not None and error is not None:
                outcome.refused.append(self._words.hook_refusal(cell, error))
            outcome.warnings = list(report.warnings)
            outcome.for_next_start = list(report.for_next_start)
            step.said.set(outcome)

        seconds = settings().reload_timeout_seconds
        cells = [cell for cell in self._agent.cells if cell.record.uid not in exempt]
        step.round = ReloadRound(cells, report, seconds, over)
        step.round.start()
        for cell in self._agent.cells:
            if cell.record.uid in exempt:
                # It waits for the push, and hears of it afterwards.
                ReloadRound([cell], report, seconds, _log_refusal).start()

    def audit(self, plan: ReloadPlan, is_over: Callable[[], bool]) -> AuditOutcome:
        """Return what still runs old code here. Takes part of a second, most of it pauses for other
        threads.

        Raises AuditEndedError when ``is_over`` becomes true.
        """
        with self._lock:
            step = self._committed.get(plan.generation)
        if step is None or step.plan.upgrade is not None or step.is_replaced:
            return AuditOutcome(num_procs=1)
        return self._preparing.audit(step.files, self.label, is_over)

    def revert(self, generation: int) -> None:
        """Undo what was prepared or switched to; notify the actors that were notified of the
        change."""
        with self._lock:
            prepared = self._prepared.pop(generation, None)
            if prepared is not None:
                prepared.ready.abort()
            step = self._committed.pop(generation, None)
            if step is None or step.report is None:
                return
            report = step.report
            report.undo()
            if generation > 0:
                self._agent.gate.take_back(generation, step.generation_before)
                self._agent.code_states.go_back(step.codes_before)
        if step.round is not None and step.round.told:
            report.undone = True
            over = threading.Event()

            def heard(cell: ActorCell | None, error: BaseException | None) -> None:
                _log_refusal(cell, error)
                over.set()

            seconds = settings().reload_timeout_seconds
            ReloadRound(step.round.told, report, seconds, heard).start()
            over.wait()

    def _abandon(self) -> None:
        for step in self._prepared.values():
            step.ready.abort()
        self._prepared.clear()

    def _extend_path(self, paths: Sequence[str]) -> None:
        # In front, so that the workspace wins over installed copies; in their order, so that what
        # comes along later does not win over the workspace.
        at = 0
        for path in paths:
            if path not in sys.path:
                sys.path.insert(at, path)
            at = sys.path.index(path) + 1


def _is_news(report: ReloadReport) -> bool:
    """Return whether anything changed that this process has loaded, or may read as its config."""
    return bool(report.modules) or any(path.endswith(CONFIG_SUFFIXES) for path in report.files)


def _log_refusal(cell: ActorCell | None, error: BaseException | None) -> None:
    if cell is not None and error is not None:
        _log.error("__reload__ of %s raised", cell.record.title, exc_info=error)
