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
from monarch.wire.address import Uid
from monarch_reload import CONFIG_SUFFIXES, NeedsRespawn, ReloadError, ReloadReport

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
        """Prepare the author's own part in an upgrade: a new version of ``live``, the class that
        the author's references to the mesh use.
        """
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
        """Prepare the step again if a module that it changes was imported after ``prepare``. Call
        it when no thread can import any more.

        The outcome is empty if nothing was missed.
        """
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
        step.outcome.wait()
        return step.outcome.value

    def _unprepared(self, generation: int) -> ReloadOutcome:
        """Return the outcome for a generation that was not prepared here. It is a refusal, unless
        this process started with that generation's code, or the plan is an upgrade of other procs.
        """
        outcome = ReloadOutcome(num_procs=1)
        if self._agent.generation < generation:
            outcome.refused.append(RefusedFile(self.label, "nothing was prepared here"))
        return outcome

    def _patch(self, step: Preparation, exempt: Collection[Uid]) -> None:
        """Change the code, and notify the actors on threads of their own. Call it under the
        lock."""
        if step.is_replaced:
            step.ready.abort()
            step.outcome.set(self._words.of_replaced(step))
            return
        started = time.perf_counter()
        step.ready.label_before = f"generation {self._agent.generation}"
        try:
            report = step.ready.commit()
        except Exception as error:
            if not isinstance(error, ReloadError):
                error = ReloadError.of_exception(error, "commit")
            refusal = self._words.refusal(error)
            step.outcome.set(ReloadOutcome(num_procs=1, refused=[refusal]))
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
            step.outcome.set(outcome)
            return

        def over(cell: ActorCell | None, error: BaseException | None) -> None:
            if cell is not None and error is not None:
                outcome.refused.append(self._words.hook_refusal(cell, error))
            outcome.warnings = list(report.warnings)
            outcome.for_next_start = list(report.for_next_start)
            step.outcome.set(outcome)

        seconds = settings().reload_timeout_seconds
        cells = [cell for cell in self._agent.cells if cell.record.uid not in exempt]
        step.round = ReloadRound(cells, report, seconds, over)
        step.round.start()
        for cell in self._agent.cells:
            if cell.record.uid in exempt:
                # It waits for the push, and hears of it afterwards.
                ReloadRound([cell], report, seconds, _log_refusal).start()

    def audit(self, plan: ReloadPlan, is_over: Callable[[], bool]) -> AuditOutcome:
        """Return what still runs old code here. Takes less than a second of computing, spread over
        several seconds so that other threads can run.

        Raises AuditEndedError when ``is_over`` becomes true.
        """
        with self._lock:
            step = self._committed.get(plan.generation)
        if step is None or step.plan.upgrade is not None or step.is_replaced:
            return AuditOutcome(num_procs=1)
        return self._preparing.audit(step.files, self.label, is_over)

    def revert(self, generation: int) -> None:
        """Undo what was prepared for, or switched to, ``generation``. Actors that were notified of
        the change are notified that it is undone.
        """
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
    """Return whether a reload has changed something that this process has loaded, or a config file
    that it may read.
    """
    return bool(report.modules) or any(path.endswith(CONFIG_SUFFIXES) for path in report.files)


def _log_refusal(cell: ActorCell | None, error: BaseException | None) -> None:
    if cell is not None and error is not None:
        _log.error("__reload__ of %s raised", cell.record.title, exc_info=error)


class ReloadWords:
    """Writes texts about a reload. ``label`` is the process's name for users."""

    def __init__(self, agent: ProcAgent, label: str) -> None:
        self._agent = agent
        self._label = label

    def of_prepared(self, step: Preparation | None) -> ReloadOutcome:
        """Return the changes that ``step`` would make here; an outcome without changes if it is
        None.
        """
        outcome = ReloadOutcome(num_procs=1)
        if step is None:
            return outcome
        verdicts = step.ready.verdicts
        outcome.modules = list(verdicts)
        outcome.is_replaced = step.is_replaced
        keeps = f"; {self._label} keeps the old layout until it is started again"
        outcome.respawn = [
            f"{verdict.module}: {verdict.reason}{keeps if self._agent.is_root else ''}"
            for verdict in verdicts.values()
            if verdict.action == "respawn"
        ]
        outcome.respawn += step.stale
        return outcome

    def of_refused(self, error: ReloadError) -> ReloadOutcome:
        """Return why a step could not be prepared."""
        if isinstance(error, NeedsRespawn):
            refused = [self.refusal(error, self._way_out())]
        else:
            refused = [self.refusal(cause) for cause in error.errors or (error,)]
        return ReloadOutcome(num_procs=1, refused=refused)

    def of_replaced(self, step: Preparation) -> ReloadOutcome:
        """Return the outcome which says that this process will be replaced by a new one."""
        return ReloadOutcome(
            num_procs=1,
            replaced=[self._label],
            replaced_actors=_count(self._agent.cells),
            warnings=step.warnings,
        )

    def of_committed(
        self, step: Preparation, report: ReloadReport, seconds: float
    ) -> ReloadOutcome:
        """Return the changes that a step has made here."""
        for cell in self._agent.cells:
            for maker in _makers_of(cell.cls):
                if maker in report.functions:
                    report.counts_from_next_start(maker, "the actor")
        return ReloadOutcome(
            num_procs=1,
            modules=report.modules,
            functions=report.functions,
            classes=report.classes,
            reran=report.reran,
            seconds=seconds,
            actors=self._patched_actors(step, report),
            notes=[*self._left_behind(report), *report.stays],
            warnings=list(report.warnings),
            for_next_start=list(report.for_next_start),
            compiles_again=report.compiles_again,
        )

    def _left_behind(self, report: ReloadReport) -> list[str]:
        """Return a warning for each class with live actors that keep their old code.

        This process sent the class by value to these actors, because the file of the class does not
        exist on their hosts.
        """
        sent = sorted(self._agent.kept_spawns.sent_whole())
        names = [
            name.rpartition(".")[2]
            for name in sent
            if any(name.startswith(f"{module}.") for module in report.modules)
        ]
        return [
            f"live actors of {name} keep the code that they were sent, since no file of theirs is "
            f"where they run: `await actors.upgrade({name})` gives them the new one"
            for name in names
        ]

    def refusal(self, error: ReloadError, more: str = "") -> RefusedFile:
        return RefusedFile(
            rank=self._label,
            message=error.message + more,
            path=error.path or "",
            line=error.line or 0,
            column=error.column or 0,
            text=error.text or "",
            traceback=error.traceback,
        )

    def hook_refusal(self, cell: ActorCell, error: BaseException) -> RefusedFile:
        """Return the refusal by an actor whose ``__reload__`` raised."""
        refused = self.refusal(ReloadError.of_exception(error, "commit"))
        hook = f"__reload__ of {cell.record.title}"
        refused.message = f"{hook} refused the new code: {refused.message}"
        return refused

    def _way_out(self) -> str:
        if self._agent.is_root:
            return '; with reload="auto" this program keeps the old layout, and procs are respawned'
        actors = ", ".join(_count(self._agent.cells)) or "none"
        return f'; reload="auto" or "respawn" makes its actors ({actors}) again in a new process'

    def _patched_actors(self, step: Preparation, report: ReloadReport) -> dict[str, int]:
        upgrade = step.plan.upgrade
        if upgrade is not None:
            return _count([c for c in self._agent.cells if c.record.uid == upgrade.mesh])
        classes = set(report.classes)
        return _count([c for c in self._agent.cells if _is_patched(c.cls, classes, report.modules)])


def _makers_of(cls: type | None) -> list[str]:
    """Return the `__init__` methods of an actor's class and of its bases, which have run
    already."""
    return (
        [f"{base.__module__}.{base.__qualname__}.__init__" for base in cls.__mro__] if cls else []
    )


def _is_patched(cls: type | None, classes: set[str], modules: Sequence[str]) -> bool:
    if cls is None:
        return False
    names = {f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__}
    return bool(names & classes) or any(base.__module__ in modules for base in cls.__mro__)


def _count(cells: Sequence[ActorCell]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for cell in cells:
        name = cell.cls.__name__ if cell.cls is not None else cell.record.name
        counts[name] = counts.get(name, 0) + 1
    return counts
