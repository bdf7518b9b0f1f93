"""The code of one process: gets a generation ready beside it, changes it, and changes it back.

When each of these happens is decided elsewhere (``turnover``).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence

from monarch.runtime.proc_agent import ProcAgent
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.reload_plan import (
    FileChange,
    RefusedFile,
    ReloadOutcome,
    ReloadPlan,
)
from monarch.wire.address import machine_id
from monarch_sync.reload import Prepared, Reloader, ReloadError, ReloadReport

__all__ = ["ReloadAgent", "project_roots"]


class ReloadAgent:
    """Changes the code of this process, or not at all. ``label`` names it to people."""

    def __init__(self, agent: ProcAgent, roots: Sequence[str], label: str) -> None:
        self._agent = agent
        self.label = label
        self._reloader = Reloader(roots)
        self._prepared: dict[int, tuple[ReloadPlan, Prepared]] = {}
        self._committed: dict[int, ReloadReport] = {}
        self._said = ReloadOutcome()
        self._told: set[int] = set()
        self._modules_then: set[str] = set()
        self._generation_before = 0
        self._lock = threading.Lock()

    def prepare_here(self, plan: ReloadPlan) -> ReloadOutcome:
        """Get ``plan`` ready. Changes nothing visible."""
        is_local = plan.author_machine == machine_id()
        changes = self._changes(plan)
        paths = [
            *plan.paths.get(self._agent.host.uid, ()),
            *(plan.local_paths if is_local else ()),
        ]
        outcome = ReloadOutcome(num_procs=1)
        with self._lock:
            self._abandon()
            for path in paths:
                self._reloader.add_root(path)
            # A module in the middle of its import counts as one that is yet to come.
            self._modules_then = {
                name
                for name, module in list(sys.modules.items())
                if not getattr(getattr(module, "__spec__", None), "_initializing", False)
            }
            try:
                # "respawn" and "off" are for the owner to act on; nothing is patched then.
                prepared = self._reloader.prepare(
                    self._sources(changes),
                    mode=plan.mode,  # type: ignore[arg-type]
                )
            except ReloadError as error:
                outcome.refused = [self._refusal(one) for one in error.errors or (error,)]
                return outcome
            self._prepared[plan.generation] = (plan, prepared)
        outcome.modules = list(prepared.verdicts)
        outcome.respawn = [
            f"{verdict.module}: {verdict.reason}"
            for verdict in prepared.verdicts.values()
            if verdict.action == "respawn"
        ]
        return outcome

    def catch_up(self, generation: int) -> ReloadOutcome:
        """Get ready what was imported since ``prepare_here``, now that nobody imports any more."""
        plan, _ = self._prepared.get(generation, (None, None))
        if plan is None or self._modules_then.issuperset(sys.modules):
            return ReloadOutcome()
        late = set(sys.modules) - self._modules_then
        changed = {os.path.realpath(change.path) for change in self._changes(plan)}
        files = (getattr(sys.modules.get(name), "__file__", None) for name in late)
        if changed.isdisjoint(os.path.realpath(file) for file in files if file):
            return ReloadOutcome()
        outcome = self.prepare_here(plan)
        return ReloadOutcome(refused=outcome.refused)

    def _changes(self, plan: ReloadPlan) -> list[FileChange]:
        """The files that change for this process."""
        is_local = plan.author_machine == machine_id()
        return [*plan.hosts.get(self._agent.host.uid, ()), *(plan.local if is_local else ())]

    def _sources(self, changes: Sequence[FileChange]) -> dict[str, bytes | None]:
        """The new texts of the files that this process has loaded; the others just change."""
        loaded = {os.path.realpath(source.path) for _, source in self._reloader.loaded()}
        texts: dict[str, bytes | None] = {}
        for change in changes:
            if os.path.realpath(change.path) in loaded:
                if change.source:
                    with open(change.source, "rb") as file:
                        texts[change.path] = file.read()
                else:
                    texts[change.path] = None
        return texts

    def _refusal(self, error: ReloadError) -> RefusedFile:
        return RefusedFile(
            self.label, error.message, error.path or "", error.line or 0, error.column or 0,
            error.text or "", error.traceback,
        )  # fmt: skip

    def patch_here(self, generation: int) -> ReloadOutcome:
        """Run what was prepared from here on. Asked again, it says the same."""
        outcome = ReloadOutcome(num_procs=1)
        with self._lock:
            if generation in self._committed:
                return self._said
            plan, prepared = self._prepared.pop(generation, (None, None))
            if plan is None or prepared is None:
                outcome.refused.append(RefusedFile(self.label, "nothing was prepared here"))
                return outcome
            started = time.perf_counter()
            try:
                report = prepared.commit()
            except ReloadError as error:
                outcome.refused.append(self._refusal(error))
                return outcome
            self._committed = {generation: report}
            self._said = outcome
            self._generation_before = self._agent.generation
            self._extend_path(plan.paths.get(self._agent.host.uid, ()))
        self._agent.generation = generation
        outcome.modules, outcome.functions = report.modules, report.functions
        outcome.classes, outcome.reran = report.classes, report.reran
        outcome.actors = self._patched_actors(report)
        outcome.seconds = time.perf_counter() - started
        return outcome

    def tell_actors(self, generation: int, exempt: str = "") -> list[tuple[str, Promise[str]]]:
        """Tell the actors of the new code; their names, and what their ``__reload__`` raised.

        Nobody waits for the actor ``exempt``, which waits for us.
        """
        report = self._committed.get(generation)
        if report is None or generation in self._told:
            return []
        self._told = {generation}
        return self._agent.tell_reloaded(report, exempt)

    def _extend_path(self, paths: Sequence[str]) -> None:
        # In front, so that the workspace wins over installed copies.
        sys.path[:0] = [path for path in paths if path not in sys.path]

    def _patched_actors(self, report: ReloadReport) -> dict[str, int]:
        found: dict[str, int] = {}
        classes = set(report.classes)
        for cell in self._agent.cells:
            cls = cell.cls
            if cls is None:
                continue
            names = {f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__}
            if names & classes or any(base.__module__ in report.modules for base in cls.__mro__):
                found[cls.__name__] = found.get(cls.__name__, 0) + 1
        return found

    def revert_here(self, generation: int) -> None:
        """Go back to what ran before ``generation``, prepared or patched."""
        with self._lock:
            _, prepared = self._prepared.pop(generation, (None, None))
            if prepared is not None:
                prepared.abort()
            report = self._committed.pop(generation, None)
            if report is not None:
                report.undo()
                self._agent.gate.take_back(generation, self._generation_before)

    def _abandon(self) -> None:
        for _, prepared in self._prepared.values():
            prepared.abort()
        self._prepared.clear()

    def close(self) -> None:
        self._reloader.close()


def project_roots(paths: Sequence[str]) -> list[str]:
    """Of import folders, those that hold somebody's project rather than installed packages."""
    installed = tuple({os.path.realpath(p) for p in (sys.prefix, sys.base_prefix)})
    found = []
    for path in paths:
        real = os.path.realpath(path or ".")
        # The runtime does not reload itself, even from a source tree.
        is_ours = os.path.isdir(f"{real}/monarch_sync") or os.path.isdir(f"{real}/monarch/runtime")
        if os.path.isdir(real) and not real.startswith(installed) and not is_ours:
            found.append(real)
    return found
