"""A process's texts about a change of code: the change, the actors it concerned, and refusals."""

from __future__ import annotations

from collections.abc import Sequence

from monarch.runtime.cells.actor_cell import ActorCell
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.runtime.workspace.preparing import Preparation
from monarch.runtime.workspace.reload_plan import RefusedFile, ReloadOutcome
from monarch_reload import NeedsRespawn, ReloadError, ReloadReport


class ReloadWords:
    """Writes texts about a reload. ``label`` is the process's name for users."""

    def __init__(self, agent: ProcAgent, label: str) -> None:
        self._agent = agent
        self._label = label

    def of_prepared(self, step: Preparation | None) -> ReloadOutcome:
        """Return the changes that a step would make here."""
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
        """Notes on live actors whose classes this process sent them, and that have no file where
        they run."""
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
