"""Commit, abort and undo of one prepared reload."""

from __future__ import annotations

import functools
import importlib
import linecache
import os
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from monarch_reload.adopt import Adoption
from monarch_reload.audit.expected import Expected
from monarch_reload.audit.history import PastCode
from monarch_reload.data_files import naming, reading_ahead
from monarch_reload.errors import ReloadError
from monarch_reload.live.classes import forget_subclass_checks, hooked_classes
from monarch_reload.live.closures import Edit, Lineage, LiveClosures
from monarch_reload.live.compiled import (
    COMPILED,
    CONVERT_FRAME,
    CodeChanges,
    forget_scripts,
    name_in,
)
from monarch_reload.live.holders import holders
from monarch_reload.live.live_functions import Functions
from monarch_reload.live.natives import kept_natively
from monarch_reload.live.patch import FunctionPatch, parts_of
from monarch_reload.live.registrars import reached
from monarch_reload.live.registries import registries, unregister
from monarch_reload.plan.dirty_marks import EditPlan
from monarch_reload.plan.edits import LiveModule, edited, move_code, unedited
from monarch_reload.plan.graph import ModuleEdit
from monarch_reload.plan.importers import Importers
from monarch_reload.plan.plan import leave_out, make_plan
from monarch_reload.plan.removed_assignments import RemovedAssignment, removed_by
from monarch_reload.plan.stars import Exports
from monarch_reload.report import ModuleVerdict, ReloadReport
from monarch_reload.reshaping import reshaped
from monarch_reload.source.source import (
    ImportHook,
    ModuleSource,
    RunningSources,
    forget_bytecode,
    real_path,
)
from monarch_reload.trial.budget import Budget
from monarch_reload.trial.held_back import left_behind
from monarch_reload.trial.stage import TrialStage
from monarch_reload.undo_log import Action, Attribute, Flip, UndoLog
from monarch_reload.verdicts import caches_of, judge, warnings_of

# Shared by all reloaders: a trial replaces functions of the interpreter, and two trials at once
# would restore them in the wrong order.
_ONE_AT_A_TIME = threading.RLock()

Mode = Literal["auto", "patch", "respawn", "off"]


class Process:
    """The state that all reloads of one reloader share."""

    def __init__(self, imported: Callable[[], Mapping[str, bytes]]) -> None:
        #: The sources that the loaded modules run.
        self.sources = RunningSources(imported)
        COMPILED.watch()
        #: Remembers the text of each module that is imported.
        self.hook = ImportHook(self.sources, {CONVERT_FRAME: COMPILED.watch})
        #: Held by whoever prepares, commits or undoes.
        self.lock = threading.RLock()
        #: The number of commits and undos so far.
        self.generation = 0
        #: The error of each (file, text) that a commit failed to switch to. If it comes again, it
        #: needs a new process.
        self.unfit: dict[tuple[str, bytes], ReloadError] = {}
        self.lineage: Lineage = {}
        #: The code that modules ran before, for audits.
        self.history = PastCode()
        #: The values that live objects should have since the commits so far, for audits.
        self.expected = Expected()
        #: Committed reloads that somebody may still undo.
        self.undoable: weakref.WeakSet[Prepared] = weakref.WeakSet()

    def held(self) -> list[Any]:
        """Return the objects that refer to old code and values so that commits can be undone."""
        return [thing for prepared in list(self.undoable) for thing in prepared.held()]


class Prepared:
    """A prepared reload, to be committed or aborted. Made by `Reloader.prepare`."""

    def __init__(
        self,
        process: Process,
        texts: Mapping[str, bytes | None],
        arriving: Mapping[str, str],
        mode: Mode,
        budget: Budget,
    ) -> None:
        #: By module name, or by path for files that no module was loaded from.
        self.verdicts: dict[str, ModuleVerdict] = {}
        #: The name, for people, of the code that runs until the commit.
        self.label_before = ""
        #: The report that `commit` will return; its `seconds` are not known yet.
        self.report = ReloadReport(verdicts=self.verdicts)
        self._process = process
        #: The generation that this reload was prepared for; it cannot be committed to another.
        self._generation = process.generation
        #: The new text of each changed file; None for a deleted file.
        self._texts = texts
        #: Further new files that new code may import, each with the path of its text until then.
        self._arriving = arriving
        self._mode = mode
        self._budget = budget
        #: The new sources, by module.
        self._sources: dict[str, ModuleSource] = {}
        self._plan = EditPlan({})
        #: The trial run of the plan.
        self._stage = TrialStage(process.hook, self._budget)
        self._functions = FunctionPatch(self._stage.namespaces)
        #: The flips of the commit, and which live object continues as which new one.
        self._adoption = Adoption(self._stage, self._functions)
        self._closures = LiveClosures(process.lineage)
        #: The new paths of modules that move to another file; set before the trial already.
        self._file_moves = UndoLog()
        #: Functions that clear caches, which the commit and its undo call.
        self._caches: list[Callable[[], None]] = []
        #: `Process.expected` of this commit alone, and as it was before.
        self._expected = self._expected_before = Expected()
        #: `PastCode.removed` as it was before the commit.
        self._removed_before: dict[str, ModuleSource] = {}
        #: How to undo the commit.
        self._log = UndoLog()
        #: What the commit changes in code that torch may have compiled.
        self._changes = CodeChanges()
        #: Whether it was committed or aborted.
        self._is_spent = False

    @property
    def needs_respawn(self) -> bool:
        """Whether a module can change only in a new process."""
        return self.report.needs_respawn

    def respawns(self, names: Collection[str], reason: str) -> None:
        """Record that these modules can change only in a new process; they do not change in this
        one."""
        for name in names:
            self.verdicts[name] = ModuleVerdict(
                name, self._process.sources[name].path, "respawn", reason
            )

    def stage_changes(
        self, changed: Mapping[str, ModuleSource], data: Collection[str], is_partial: bool
    ) -> None:
        """Plan the changes, run the new code beside the live modules, and collect the changes of
        live objects.

        ``data`` are config files that change; the disk may still have their old texts.
        ``is_partial``: classes that cannot change in place get at least their new methods.

        Raises ReloadError for errors of the new code, OverBudget if the planning takes too long,
        and any other exception if the reloader itself fails. In all these cases the reload is
        aborted.
        """
        self._adoption.classes.is_partial = is_partial
        try:
            self._stage_changes(changed, data)
        except BaseException:
            self.abort()
            raise

    def _stage_changes(self, changed: Mapping[str, ModuleSource], data: Collection[str]) -> None:
        running = self._process.sources
        if changed:  # Else no graph can become old, and the search for them takes long.
            self._process.history.older_graphs.look()
        living = functools.cache(Functions.living)

        def look_at(name: str) -> LiveModule:
            return LiveModule(name, sys.modules[name], running[name], living)

        live = {}
        for name in changed:
            self._budget.check()
            live[name] = look_at(name)
        self._move_files(changed)
        exports = Exports(running, changed)
        edits = []
        for name, source in changed.items():
            self._budget.check()
            edits.append(edited(live[name], source, exports))
        removed = list(self._make_again(edits, live, changed, exports))
        edits = self._rereading(edits, data, exports)
        loaded = [name for name, _ in running.loaded()]
        importers = Importers(running, changed, exports)
        self._plan = make_plan(edits, importers, loaded, self._budget.check)
        self._sources = dict(changed)
        self._leave_out(removed)
        self._try_out(changed, data)
        self._adopt(live, changed, look_at)
        self._judge(changed)

    def _move_files(self, changed: Mapping[str, ModuleSource]) -> None:
        """Give modules whose file has moved the path of the new file at once, so that imports in
        the new code find the files beside it.
        """
        for name, source in changed.items():
            if source.path != self._process.sources[name].path:
                self._file_moves.apply(reshaped(sys.modules[name], source.path))

    def _leave_out(self, all_removed: list[tuple[str, RemovedAssignment]]) -> None:
        """Remove from the plan the statements that cannot run again in this process, and note the
        reasons.

        ``all_removed`` are (module, assignment) for removed assignments whose effect the plan
        cannot undo. It is undone by a deletion if that is possible, and noted otherwise.
        """
        for name, plan in self._plan.modules.items():
            self._adoption.refused[name] = leave_out(plan, vars(sys.modules[name]))
        for name, removed in all_removed:
            if removed.removal is not None:
                self._adoption.bindings.append(removed.removal)
            elif removed.is_code:
                self._adoption.refused.setdefault(name, {})[removed.title] = removed.reason
            else:
                self.report.stays.append(f"{name}: {removed}")

    def _try_out(self, changed: Mapping[str, ModuleSource], data: Collection[str]) -> None:
        """Run the plan beside the live modules, with all new files as if they were on disk."""
        if not any(plan.is_staged for plan in self._plan.modules.values()):
            return
        running, hook = self._process.sources, self._process.hook
        sources = {n: changed.get(n) or running[n] for n in self._plan.modules}
        hook.pending = {os.path.realpath(p): t for p, t in self._texts.items() if t is not None}
        hook.arriving = {real_path(path): text_path for path, text_path in self._arriving.items()}
        importlib.invalidate_caches()
        contents = {os.path.realpath(path): self._texts[path] or b"" for path in data}
        try:
            with _ONE_AT_A_TIME, reading_ahead(contents, self._stage.builtins):
                self._stage.run(self._plan, sources, list(running.loaded()))
        finally:
            hook.pending, hook.arriving = {}, {}

    def _adopt(
        self,
        live: Mapping[str, LiveModule],
        changed: Mapping[str, ModuleSource],
        look_at: Callable[[str], LiveModule],
    ) -> None:
        """Collect the changes that turn live objects into the new versions that the trial made."""
        running = self._process.sources
        self._adoption.deleted = {
            name: running[name]
            for path, text in self._texts.items()
            if text is None
            for name in running.names_at(os.fspath(path))
        } | self._process.history.removed
        following = {
            name
            for name, plan in self._plan.modules.items()
            if name not in live and any(plan.edit.new[i].is_decorated for i in plan.run | plan.twin)
        }
        self._adoption.adopt(self._plan, {**live, **{name: look_at(name) for name in following}})
        self.report.stays += self._adoption.stays
        for name, source in changed.items():
            move_code(live[name], source, self._plan.modules[name], self._functions)
        self._follow()
        self._refuse_what_native_code_keeps(changed)
        paths = {source.path for _, source in running.running()}
        twins, displaced = self._functions.twins.values(), self._adoption.displaced.values()
        self._expected = Expected.of(
            twins, (before for _, before in displaced), paths, self._functions.patched
        )

    def _follow(self) -> None:
        """Collect the changes of functions that cannot be found by a name, such as closures and
        wrappers.
        """
        staged_ids = {id(namespace) for namespace in self._stage.namespaces.values()}
        flips = [flip for flip in self._functions.flips if isinstance(flip, Attribute)]
        makers = [(flip.owner, flip.value) for flip in flips if flip.name == "__code__"]
        paths: set[str] = set()
        for edit in self._switches().values():
            if edit.before.path not in paths and edit.old:
                paths.add(edit.before.path)
                self._closures.follow(
                    edit, makers, lambda function: id(function.__globals__) in staged_ids
                )
        self._functions.flips += self._closures.flips
        self._functions.patched += self._closures.patched
        self._closures.count()

    def _switches(self) -> dict[str, Edit]:
        """Return the edits of the modules whose sources change, by module name."""
        switches = {}
        for name, source in self._sources.items():
            edit = self._plan.modules[name].edit
            before = self._process.sources[name]
            switches[name] = Edit(before, source, edit.old, edit.new, edit.alignment)
        return switches

    def _refuse_what_native_code_keeps(self, changed: Collection[str]) -> None:
        """Refuse changes of classes that native code, such as a compiled validator, would go on
        using in their old form. Their methods are changed nevertheless.
        """
        patched = {id(cls) for cls in self._adoption.classes.patched}
        twins = self._functions.twins.values()
        pairs = [
            (staged, live) for staged, live in twins if id(live) in patched and staged is not live
        ]
        for live, holder in kept_natively(pairs) if pairs else ():
            name = live.__module__ if live.__module__ in self._plan.modules else min(changed)
            reasons = self._adoption.refused.setdefault(name, {})
            reasons[live.__qualname__] = f"{holder} keeps the class in native code"
            self._adoption.classes.take_methods_only(live)

    def _judge(self, changed: Mapping[str, ModuleSource]) -> None:
        """Fill in the report: the verdicts, the warnings and the threads that the trial started.
        Collect the caches that the commit will clear.
        """
        report, plan, running = self.report, self._plan, self._process.sources
        refused, moved = self._adoption.refused, self._adoption.moved
        patched = self._functions.patched
        judge(report, plan, running, changed, refused=refused, patched=patched, moved=moved)
        report.warnings += warnings_of(plan, running, changed, self._stage.namespaces)
        for name in self.report.at_start:
            self.report.counts_from_next_start(name)
        self.report.threads = self._stage.outside.threads
        self._caches = list(caches_of(self._plan))

    def _make_again(
        self,
        edits: list[ModuleEdit],
        live: Mapping[str, LiveModule],
        changed: Mapping[str, ModuleSource],
        exports: Exports,
    ) -> Iterator[tuple[str, RemovedAssignment]]:
        """Plan to make objects again whose attributes or items a removed statement has set, also in
        modules that are not edited. ``edits`` is extended by these.

        Yields (module, removed assignment) for each assignment whose effect cannot be removed so;
        ``module`` is the edited module.
        """
        running = self._process.sources
        anew: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        texts = [source.text for source in changed.values()]
        for edit in edits:
            for removed in removed_by(edit, running, texts):
                if removed.place is None:
                    yield edit.name, removed
                else:
                    name, cls, inside = removed.place
                    anew[name].append((cls, inside))
        for name, places in anew.items():
            if name in changed:
                index = next(i for i, edit in enumerate(edits) if edit.name == name)
                edits[index] = edited(live[name], changed[name], exports, places)
            else:
                module = sys.modules[name]
                edits.append(unedited(name, module, running[name], exports, places))

    def _rereading(
        self, edits: list[ModuleEdit], data: Collection[str], exports: Exports
    ) -> list[ModuleEdit]:
        """Return the edits, and further edits of unchanged modules that have a statement which
        names one of the config files in ``data``.
        """
        if not data:
            return edits
        changed = {edit.name for edit in edits}
        last = [os.path.basename(path) for path in data]
        for name, module in self._process.sources.loaded():
            source = self._process.sources[name]
            if name not in changed and any(
                os.fsencode(file_name) in source.text for file_name in last
            ):
                edits.append(unedited(name, module, source, exports))
        edits = [replace(edit, rereads=naming(edit.new, data)) for edit in edits]
        for path in data:
            readers = [edit.name for edit in edits if naming(edit.new, [path])]
            if readers:
                reason = f"named in {', '.join(readers)}"
                self.verdicts[path] = ModuleVerdict("", path, "rerun", reason)
        return [edit for edit in edits if edit.rereads or edit.name in changed]

    def abort(self) -> None:
        """Drop the reload; the process is as if it had never been prepared."""
        if not self._is_spent:
            self._is_spent = True
            self._stage.close(keep_imported=False)
            self._file_moves.rollback()
            self._adoption.forget_all()
            self._let_go()

    def commit(self) -> ReloadReport:
        """Switch to the new code; return the report. If that fails, undo everything and raise
        ReloadError."""
        started = time.perf_counter()
        process, report = self._process, self.report
        with process.lock:
            if self._is_spent or self._generation != process.generation:
                self.abort()
                message = "prepared for code that this process no longer runs; prepare again"
                raise ReloadError(message, phase="commit")
            self._is_spent = True
            log = self._log
            before = {name: process.sources[name] for name in self._sources}
            try:
                self._stage.close(keep_imported=True)
                if self._stage.namespaces:
                    self._adoption.settle()
                log.apply(COMPILED.following(self._flips(), self._changes, self._copy_codes))
                report.compiles_again = self._refresh()
            except BaseException as error:
                log.rollback()
                self._refresh()
                self._stage.close(keep_imported=False)
                self._file_moves.rollback()
                if not isinstance(error, Exception):
                    raise
                refused = ReloadError.of_exception(error, "commit")
                for source in self._sources.values():
                    process.unfit[source.path, source.text] = refused
                raise refused from error
            self._adoption.forget_twins()
            self._closures.forget()
            self._stage.made.clear()
            self._let_go()
            self._stage.was_taken = True
            self._note(before)
            process.generation += 1
            generation = process.generation
            report.seconds = time.perf_counter() - started
        report._undo = lambda: self._undo(log, generation)
        return report

    def _let_go(self) -> None:
        """Drop the references to the trial's objects that an undo of the commit does not need."""
        self._functions.let_go()
        self._adoption.let_go()
        self._stage.let_go()

    def _note(self, before: Mapping[str, ModuleSource]) -> None:
        """Record, for later audits and for an undo, that the process no longer runs the sources
        ``before``, which are by module name.
        """
        process = self._process
        for name, source in before.items():
            process.history.replaced(name, source, self.label_before)
        self._removed_before = dict(process.history.removed)
        process.history.now_on_disk(process.sources, self._texts)
        self._expected_before = process.expected
        process.expected = process.expected.followed_by(self._expected)
        process.undoable.add(self)

    def held(self) -> list[Any]:
        """Return the objects that an undo of this reload needs. They refer to old code and old
        values.
        """
        log, adoption = self._log, self._adoption
        return [*log.held(), self._caches, adoption.classes.patched, self._functions.patched]

    def _flips(self) -> Iterator[Flip]:
        adoption = self._adoption
        asked = self._stage.held_back or adoption.gone or adoption.undecorated
        candidates = list(registries(holders(self._process.sources.loaded()))) if asked else []
        yield from self._functions.flips
        yield from self._closures.latecomers()
        yield from self._adoption.classes.flips
        yield from self._adoption.bindings
        for live, registrars in adoption.undecorated:
            used = {id(container) for registrar in registrars for container in reached(registrar)}
            ids = {id(part) for part in parts_of(live, getattr(live, "__module__", ""))}
            yield from unregister([r for r in candidates if r.family in used], ids)
        for held in self._stage.held_back:
            yield held.flip(self._functions.live_of, self._adoption.before_of)
        yield from left_behind(candidates, self._stage.held_back, self._functions.live_of)
        yield from self._stage.outside.flips(self._functions.live_of)
        yield from self._stage.overloads.flips(self._switches(), self._functions.live_of)
        for store in self._stage.stores:
            yield store.flip(self._functions.live_of)
        yield from unregister(candidates, {id(thing) for thing in adoption.gone})
        for name, source in self._sources.items():
            yield Action(lambda name=name, source=source: self._record(name, source))  # type: ignore[misc]

    def _record(self, name: str, source: ModuleSource) -> Callable[[], None]:
        before = self._process.sources[name]
        self._process.sources.record(name, source)
        return lambda: self._process.sources.record(name, before)

    def _undo(self, log: UndoLog, generation: int) -> None:
        with self._process.lock:
            if generation != self._process.generation:
                raise RuntimeError("another reload came after this one; undo that one first")
            taken_back = {name: self._process.sources[name] for name in self._sources}
            log.rollback()
            self._stage.close(keep_imported=False)
            self._file_moves.rollback()
            self._refresh()
            for name, source in taken_back.items():
                self._process.history.undone(name, source)
            self._process.history.removed = self._removed_before
            self._process.expected = self._expected_before
            self._process.generation += 1

    def _copy_codes(self) -> None:
        """Have the sources use copies of their code objects, because the line numbers of code
        objects that live functions run are about to be changed.
        """
        for name, source in self._sources.items():
            for version in (self._process.sources[name], source):
                version.copy_codes()

    def _refresh(self) -> list[str]:
        """Clear caches that were computed from the old code; return the functions that torch
        compiles again."""
        for clear in self._caches:
            clear()
        if self._mode != "off":
            for path in self._texts:
                linecache.cache.pop(path, None)
            for source in self._sources.values():
                linecache.cache.pop(source.path, None)
        patched = [*self._adoption.classes.patched, *hooked_classes(self._functions.patched)]
        if patched:
            forget_subclass_checks(patched)
        forget_bytecode(self._texts)
        forget_scripts()
        importlib.invalidate_caches()
        compiled = set()
        for code in COMPILED.forget(self._changes):
            names = self._process.sources.names_at(code.co_filename)
            module = names[0] if names else Path(code.co_filename).stem
            compiled.add(f"{module}.{name_in(code)}")
        return sorted(compiled)
