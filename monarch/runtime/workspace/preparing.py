"""Prepares a change of code in this process: tries it beside the live modules, unseen by running
code."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from monarch.net.machine import machine_id
from monarch.runtime.cells.reload_round import ReloadRound
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.reload_plan import (
    AuditOutcome,
    FileChange,
    ReloadOutcome,
    ReloadPlan,
    Upgrade,
)
from monarch.runtime.workspace.shared_trial import SharedTrial
from monarch.wire.address import Uid
from monarch.wire.by_value import load_afresh, stand_for
from monarch.wire.host_code import HostCode
from monarch_reload import (
    CONFIG_SUFFIXES,
    Action,
    ClassUpgrade,
    Prepared,
    Reloader,
    ReloadError,
    ReloadReport,
)


class Preparation(msgspec.Struct):
    """One change of code in this process, prepared but perhaps not yet made."""

    plan: ReloadPlan
    #: The new code, which can be committed or aborted.
    ready: Prepared | ClassUpgrade
    files: list[str]
    #: The modules that existed when it was prepared.
    modules: set[str] = msgspec.field(default_factory=set)
    #: Whether a new process replaces this one.
    is_replaced: bool = False
    #: What ran before the switch: here, and on all hosts.
    generation_before: int = 0
    codes_before: dict[Uid, HostCode] = msgspec.field(default_factory=dict)
    #: Set by the switch.
    report: ReloadReport | None = None
    #: Notifies the actors of the switch.
    round: ReloadRound | None = None
    #: Set when all actors have been notified.
    outcome: Promise[ReloadOutcome] = msgspec.field(default_factory=Promise)
    #: Errors that the new code will raise.
    warnings: list[str] = msgspec.field(default_factory=list)
    #: Old code of this process, which ends with the process.
    stale: list[str] = msgspec.field(default_factory=list)


class AuditEndedError(Exception):
    """Nobody waits for an audit any more."""


class Breaks:
    """The pauses of an audit. Each is several times as long as the work before it; together they
    take a few seconds.

    The first comes before any work, because all processes are busy after a switch. A pause raises
    AuditEndedError if ``is_over`` returns True.
    """

    def __init__(self, is_over: Callable[[], bool] = lambda: False) -> None:
        self._is_over = is_over
        self._seconds_left = _MOST_SECONDS_OF_BREAKS
        self._began = time.thread_time()

    def __call__(self) -> None:
        # The time of this thread alone: on a busy machine it may wait long for a processor.
        worked = time.thread_time() - self._began
        if self._seconds_left > 0.0:
            began = time.monotonic()
            time.sleep(min(_BREAKS * worked, _LONGEST_BREAK_SECONDS))
            self._seconds_left -= time.monotonic() - began
        if self._is_over():
            raise AuditEndedError
        self._began = time.thread_time()


_BREAKS = 9
_LONGEST_BREAK_SECONDS = 0.02
_MOST_SECONDS_OF_BREAKS = 6.0


class Preparing:
    """Prepares changes of code. If a change cannot be prepared, a method raises ``ReloadError``,
    and nothing has changed.
    """

    def __init__(self, agent: ProcAgent, roots: Sequence[str]) -> None:
        self._agent = agent
        self._trial = SharedTrial()
        self._stale: list[str] = []  # what the last audit has found
        self._reloader = Reloader(roots, imported=agent.imported_texts, spare=self._trial)

    def close(self) -> None:
        self._reloader.close()

    def step(self, plan: ReloadPlan) -> Preparation | None:
        """Prepare what a plan changes in this process, and return it; None if it changes nothing
        here.
        """
        if plan.upgrade is None:
            return self._of_files(plan)
        cells = [cell for cell in self._agent.cells if cell.record.uid == plan.upgrade.mesh]
        live = next((cell.cls for cell in cells if cell.cls is not None), None)
        if live is None:
            return None  # No actor of the mesh lives here.
        return self.of_class(plan, live, plan.upgrade, adds_globals=True)

    def has_missed(self, step: Preparation) -> bool:
        """Return whether a module that the step changes was imported after the preparation of the
        step.
        """
        if step.plan.upgrade is not None or step.modules.issuperset(sys.modules):
            return False
        late = (sys.modules.get(name) for name in set(sys.modules) - step.modules)
        files = (_attribute(module, "__file__") for module in late)
        changed = {os.path.realpath(change.path) for change in self._changes(step.plan)}
        return not changed.isdisjoint(os.path.realpath(file) for file in files if file)

    def audit(self, files: Sequence[str], label: str, is_over: Callable[[], bool]) -> AuditOutcome:
        """Return what still runs old code in this process.

        The audit pauses often, so training keeps about nine tenths of the time. Raises
        AuditEndedError when ``is_over`` becomes true.
        """
        audit = self._reloader.audit(files, pause=Breaks(is_over))
        self._stale = audit.stale
        return AuditOutcome(
            stale={text: [label] for text in audit.stale},
            kept={text: [label] for text in audit.kept},
            num_procs=1,
            seconds=audit.seconds,
        )

    def _is_local(self, plan: ReloadPlan) -> bool:
        return plan.author_machine == machine_id()

    def _changes(self, plan: ReloadPlan) -> list[FileChange]:
        local = plan.local if self._is_local(plan) else ()
        return [*plan.hosts.get(self._agent.host.uid, ()), *local]

    def _of_files(self, plan: ReloadPlan) -> Preparation:
        changes = self._changes(plan)
        local_paths = plan.local_paths if self._is_local(plan) else ()
        folders = [*plan.paths.get(self._agent.host.uid, ()), *local_paths]
        for folder in folders:
            self._reloader.add_root(folder)
        is_root = self._agent.is_root
        # New code is tried here in any case: code that does not run must not end a process.
        mode = plan.mode if plan.mode in ("patch", "off") else "auto"
        # A module that is being imported now counts as not imported yet.
        modules = set(sys.modules) - being_imported()
        texts = self._sources(changes)
        self._trial.push = plan.attempt
        not_loaded = [
            change for change in changes if change.path not in texts and change.path.endswith(".py")
        ]
        ready = self._reloader.prepare(
            texts,
            mode=mode,  # type: ignore[arg-type]
            as_far_as_possible=is_root,
            arriving={change.path: change.source for change in not_loaded if change.source},
            folders=folders,
            deleted=[change.path for change in not_loaded if not change.source],
        )
        actions = {verdict.action for verdict in ready.verdicts.values() if verdict.module}
        unfit = {"respawn"} if plan.mode == "auto" else {"respawn", "patch", "rerun"}
        step = Preparation(plan, ready, [change.path for change in changes], modules)
        # Without the warnings about the next start: a replaced process makes it at once.
        for_next = ready.report.for_next_start
        step.warnings = [text for text in ready.report.warnings if text not in for_next]
        step.is_replaced = (
            not is_root and plan.mode in ("auto", "respawn") and bool(actions & unfit)
        )
        if plan.mode == "respawn" and not is_root and self._stale:
            step.is_replaced, step.stale = True, self._stale
        return step

    def _sources(self, changes: Sequence[FileChange]) -> dict[str, bytes | None]:
        """Return the new texts of the files that this process has loaded, and of config files.

        ``None`` is for a deleted file. Files that are not loaded are left out: they are read when
        they are imported.
        """
        late = being_imported()  # see has_missed
        loaded = {
            os.path.realpath(source.path)
            for name, source in self._reloader.loaded()
            if name not in late
        }
        return {
            change.path: _new_text(change)
            for change in changes
            if change.path.endswith(CONFIG_SUFFIXES) or os.path.realpath(change.path) in loaded
        }

    def of_class(
        self, plan: ReloadPlan, live: type, upgrade: Upgrade, *, adds_globals: bool
    ) -> Preparation:
        """Return a prepared upgrade of the actor class ``live`` to the class that ``upgrade`` has
        as a pickle.

        Nothing changes before it is committed. ``adds_globals``: the module values that the new
        methods read are added to the globals of the live methods. Raises ``ReloadError`` if the new
        class cannot be loaded.
        """
        try:
            staged, number = load_afresh(upgrade.pickled)
        except Exception as error:
            raise ReloadError.of_exception(error, "run") from error
        # If the new class is sent to an actor here later, it arrives as the live class.
        also = (Action(lambda: stand_for(number, live)),) if adds_globals else ()
        return Preparation(
            plan, ClassUpgrade(live, staged, adds_globals=adds_globals, also=also), []
        )


def being_imported() -> set[str]:
    """Return the modules that are being imported now.

    A thread that imports a module holds a lock with the name of the module. So only modules with
    such a lock are checked, not all thousands.
    """
    locks = getattr(getattr(importlib, "_bootstrap", None), "_module_locks", sys.modules)
    specs = {name: _attribute(sys.modules.get(name), "__spec__") for name in list(locks)}
    return {name for name, spec in specs.items() if getattr(spec, "_initializing", False)}


def _attribute(module: object, name: str) -> Any:
    """Return an attribute of a module, or None if it has none of this name.

    A lazy module, which loads itself when an attribute is read, is not loaded.
    """
    try:
        return object.__getattribute__(module, name)
    except AttributeError:
        return None


def _new_text(change: FileChange) -> bytes | None:
    """Return the text that a file will have; None if it will be deleted."""
    if not change.source:
        return None
    with open(change.source, "rb") as file:
        return file.read()
