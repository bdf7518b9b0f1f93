"""A change of code in this process: prepared, switched to between two messages, taken back."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from monarch.config import settings
from monarch.runtime.actor_cell import ActorCell
from monarch.runtime.proc_agent import ProcAgent
from monarch.runtime.promise import Promise
from monarch.runtime.reload_round import ReloadRound
from monarch.runtime.workspace.reload_plan import (
    FileChange,
    RefusedFile,
    ReloadOutcome,
    ReloadPlan,
    Upgrade,
)
from monarch.wire.address import Uid, machine_id
from monarch.wire.by_value import load_afresh, stand_for
from monarch_sync.reload import (
    CONFIG_SUFFIXES,
    Action,
    ClassUpgrade,
    NeedsRespawn,
    Reloader,
    ReloadError,
    ReloadReport,
    Verdict,
)

__all__ = ["LocalReload"]

_log = logging.getLogger("monarch.reload")


class _Ready(Protocol):
    """Code that can still go either way."""

    verdicts: dict[str, Verdict]

    def commit(self) -> ReloadReport: ...

    def abort(self) -> None: ...


@dataclass
class _Step:
    """One change of code. ``modules`` were there when it was prepared.

    ``report`` is there once it was switched to, ``round`` tells the actors, ``said`` is what came
    of it.
    """

    plan: ReloadPlan
    ready: _Ready
    files: list[str]
    modules: set[str] = field(default_factory=set)
    is_replaced: bool = False
    generation_before: int = 0
    report: ReloadReport | None = None
    round: ReloadRound | None = None
    said: Promise[ReloadOutcome] = field(default_factory=Promise)


class LocalReload:
    """What a process does of each step of a change. ``label`` is its name for people."""

    def __init__(self, agent: ProcAgent, roots: Sequence[str], label: str) -> None:
        self._agent = agent
        self.label = label
        self._reloader = Reloader(roots)
        self._prepared: dict[int, _Step] = {}
        self._committed: dict[int, _Step] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        self._reloader.close()

    def prepare(self, plan: ReloadPlan) -> ReloadOutcome:
        """Get ready; nothing visible changes."""
        outcome = ReloadOutcome(num_procs=1)
        with self._lock:
            self._abandon()
            try:
                step = self._upgrade(plan, plan.upgrade) if plan.upgrade else self._reload(plan)
            except NeedsRespawn as error:
                outcome.refused = [self._refusal(error, self._way_out())]
            except ReloadError as error:
                outcome.refused = [self._refusal(one) for one in error.errors or (error,)]
            else:
                if step is not None:
                    self._prepared[plan.generation] = step
                    self._say_what_comes(step, outcome)
        return outcome

    def _changes(self, plan: ReloadPlan) -> list[FileChange]:
        is_local = plan.author_machine == machine_id()
        return [*plan.hosts.get(self._agent.host.uid, ()), *(plan.local if is_local else ())]

    def _reload(self, plan: ReloadPlan) -> _Step:
        is_local = plan.author_machine == machine_id()
        host = self._agent.host.uid
        changes = self._changes(plan)
        for path in (*plan.paths.get(host, ()), *(plan.local_paths if is_local else ())):
            self._reloader.add_root(path)
        is_root = self._agent.is_root
        # New code is tried here in any case, so that one that does not run ends nobody.
        mode = plan.mode if plan.mode in ("patch", "off") else "auto"
        # A module in the middle of its import counts as one that is yet to come.
        modules = {name for name in list(sys.modules) if not _is_being_imported(name)}
        texts = self._sources(changes)
        ready = self._reloader.prepare(
            texts,
            mode=mode,  # type: ignore[arg-type]
            as_far_as_possible=is_root,
            arriving={
                change.path: change.source
                for change in changes
                if change.source and change.path not in texts and change.path.endswith(".py")
            },
        )
        actions = {verdict.action for verdict in ready.verdicts.values() if verdict.module}
        unfit = {"respawn"} if plan.mode == "auto" else {"respawn", "patch", "rerun"}
        step = _Step(plan, ready, [change.path for change in changes], modules)
        step.is_replaced = (
            not is_root and plan.mode in ("auto", "respawn") and bool(actions & unfit)
        )
        return step

    def _say_what_comes(self, step: _Step, outcome: ReloadOutcome) -> None:
        verdicts = step.ready.verdicts
        outcome.modules = list(verdicts)
        outcome.is_replaced = step.is_replaced
        keeps = f"; {self.label} keeps the old layout until it is started again"
        outcome.respawn = [
            f"{verdict.module}: {verdict.reason}{keeps if self._agent.is_root else ''}"
            for verdict in verdicts.values()
            if verdict.action == "respawn"
        ]

    def _way_out(self) -> str:
        if self._agent.is_root:
            return '; with reload="auto" this program keeps the old layout, and procs are respawned'
        actors = ", ".join(_count(self._agent.cells)) or "none"
        return f'; reload="auto" or "respawn" makes its actors ({actors}) again in a new process'

    def _sources(self, changes: Sequence[FileChange]) -> dict[str, bytes | None]:
        """New texts of the files that this process has loaded, and of config files; the others
        are there when new code imports them."""
        loaded = {
            os.path.realpath(source.path)
            for name, source in self._reloader.loaded()
            if not _is_being_imported(name)  # it is late: see below
        }
        return {
            change.path: _new_text(change)
            for change in changes
            if change.path.endswith(CONFIG_SUFFIXES) or os.path.realpath(change.path) in loaded
        }

    def catch_up(self, generation: int) -> ReloadOutcome:
        """Get ready what was imported since ``prepare``, now that nobody imports any more."""
        with self._lock:
            step = self._prepared.get(generation)
        if step is None or step.plan.upgrade is not None:
            return ReloadOutcome()
        if step.modules.issuperset(sys.modules):
            return ReloadOutcome()
        late = (sys.modules.get(name) for name in set(sys.modules) - step.modules)
        files = (getattr(module, "__file__", None) for module in late)
        changed = {os.path.realpath(change.path) for change in self._changes(step.plan)}
        if changed.isdisjoint(os.path.realpath(file) for file in files if file):
            return ReloadOutcome()
        outcome = self.prepare(step.plan)
        return ReloadOutcome(refused=outcome.refused, is_replaced=outcome.is_replaced)

    def _upgrade(self, plan: ReloadPlan, upgrade: Upgrade) -> _Step | None:
        """Nothing where no actor of the mesh lives."""
        cells = [cell for cell in self._agent.cells if cell.record.uid == upgrade.mesh]
        live = next((cell.cls for cell in cells if cell.cls is not None), None)
        if live is None:
            return None
        return _Step(plan, self._new_class(live, upgrade, adds_globals=True), [])

    def prepare_class(self, plan: ReloadPlan, live: type) -> ReloadOutcome:
        """The author's part in an upgrade: the class that its references to the mesh have."""
        assert plan.upgrade is not None
        outcome = ReloadOutcome()
        with self._lock:
            self._abandon()
            try:
                ready = self._new_class(live, plan.upgrade, adds_globals=False)
            except ReloadError as error:
                outcome.refused = [self._refusal(error)]
            else:
                self._prepared[plan.generation] = _Step(plan, ready, [])
        return outcome

    def _new_class(self, live: type, upgrade: Upgrade, *, adds_globals: bool) -> ClassUpgrade:
        try:
            staged, number = load_afresh(upgrade.pickled)
        except Exception as error:
            raise ReloadError.of_exception(error, "run") from error
        # Whoever is sent the new class from now on is to find the live one in its place.
        also = (Action(lambda: stand_for(number, live)),) if adds_globals else ()
        return ClassUpgrade(live, staged, adds_globals=adds_globals, also=also)

    def switch(self, generation: int, exempt: Uid = "") -> ReloadOutcome:
        """Run the generation from here on; back once all actors but ``exempt`` have heard of it.

        To be called while nobody runs anything. Asked again, it says the same.
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
        """Born on this generation, after the others prepared; or an upgrade of others."""
        outcome = ReloadOutcome(num_procs=1)
        if self._agent.generation < generation:
            outcome.refused.append(RefusedFile(self.label, "nothing was prepared here"))
        return outcome

    def _patch(self, step: _Step, exempt: Uid) -> None:
        """Under the lock. What the actors are told of, they hear on threads of their own."""
        outcome = ReloadOutcome(num_procs=1)
        if step.is_replaced:
            step.ready.abort()
            outcome.replaced = [self.label]
            outcome.replaced_actors = _count(self._agent.cells)
            step.said.set(outcome)
            return
        started = time.perf_counter()
        try:
            report = step.ready.commit()
        except Exception as error:
            known = isinstance(error, ReloadError)
            refused = error if known else ReloadError.of_exception(error, "commit")
            outcome.refused.append(self._refusal(refused))  # type: ignore[arg-type]
            step.said.set(outcome)
            return
        report.files = step.files
        step.report = report
        self._extend_path(step.plan.paths.get(self._agent.host.uid, ()))
        step.generation_before = self._agent.generation
        if step.plan.generation > 0:
            self._agent.generation = step.plan.generation
        outcome.modules, outcome.functions = report.modules, report.functions
        outcome.classes, outcome.reran = report.classes, report.reran
        outcome.actors = self._patched_actors(step, report)
        outcome.seconds = time.perf_counter() - started
        self._tell(step, outcome, exempt)

    def _tell(self, step: _Step, outcome: ReloadOutcome, exempt: Uid) -> None:
        """Have the actors hear of it; one that raises refuses the new code for all."""
        report = step.report
        assert report is not None
        if not report.modules and not any(path.endswith(CONFIG_SUFFIXES) for path in report.files):
            step.said.set(outcome)
            return

        def over(cell: ActorCell | None, error: BaseException | None) -> None:
            if cell is not None and error is not None:
                outcome.refused.append(self._hook_refusal(cell, error))
            step.said.set(outcome)

        seconds = settings().reload_timeout_seconds
        cells = [cell for cell in self._agent.cells if cell.record.uid != exempt]
        step.round = ReloadRound(cells, report, seconds, over)
        step.round.start()
        for cell in self._agent.cells:
            if cell.record.uid == exempt:
                # It waits for the push, and hears of it afterwards.
                ReloadRound([cell], report, seconds, _log_refusal).start()

    def revert(self, generation: int) -> None:
        """Take back what was prepared or switched to; those that have heard hear of that, too."""
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

    def _patched_actors(self, step: _Step, report: ReloadReport) -> dict[str, int]:
        upgrade = step.plan.upgrade
        if upgrade is not None:
            return _count([c for c in self._agent.cells if c.record.uid == upgrade.mesh])
        classes = set(report.classes)
        return _count([c for c in self._agent.cells if _is_patched(c.cls, classes, report.modules)])

    def _refusal(self, error: ReloadError, more: str = "") -> RefusedFile:
        return RefusedFile(
            self.label, error.message + more, error.path or "", error.line or 0,
            error.column or 0, error.text or "", error.traceback,
        )  # fmt: skip

    def _hook_refusal(self, cell: ActorCell, error: BaseException) -> RefusedFile:
        refused = self._refusal(ReloadError.of_exception(error, "commit"))
        hook = f"__reload__ of {cell.record.title}"
        refused.message = f"{hook} refused the new code: {refused.message}"
        return refused


def _is_being_imported(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def _new_text(change: FileChange) -> bytes | None:
    """What a file will hold."""
    if not change.source:
        return None
    with open(change.source, "rb") as file:
        return file.read()


def _log_refusal(cell: ActorCell | None, error: BaseException | None) -> None:
    if cell is not None and error is not None:
        _log.error("__reload__ of %s raised", cell.record.title, exc_info=error)


def _is_patched(cls: type | None, classes: set[str], modules: Sequence[str]) -> bool:
    if cls is None:
        return False
    names = {f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__}
    return bool(names & classes) or any(base.__module__ in modules for base in cls.__mro__)


def _count(cells: Sequence[ActorCell]) -> dict[str, int]:
    found: dict[str, int] = {}
    for cell in cells:
        name = cell.cls.__name__ if cell.cls is not None else cell.record.name
        found[name] = found.get(name, 0) + 1
    return found
