"""Prepare, commit, abort, undo: one process's part in a reload."""

from __future__ import annotations

import contextlib
import gc
import importlib
import linecache
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from .adopt import Adoption
from .edits import LiveModule, edited, move_code, unedited
from .errors import ReloadError
from .flips import Action, Flip, UndoLog
from .graph import ModuleEdit, Plan, make_plan
from .patch import FunctionPatch, parts_of
from .report import ReloadReport, Verdict
from .source import ImportHook, RunningSources, Source, forget_bytecode
from .stage import Stage

Mode = Literal["auto", "patch", "respawn", "off"]
PathLike = str | os.PathLike[str]


class Reloader:
    """Reloads modules that were loaded from `roots`, now or later, when told that they changed.

    Make it before the modules are imported where possible: what a module runs is then known
    from its import, and not from a file that may have changed since.
    """

    def __init__(self, roots: Iterable[PathLike]) -> None:
        self._sources = RunningSources()
        self._hook = ImportHook(self._sources)
        self._lock = threading.RLock()
        self._generation = 0
        for root in roots:
            self.add_root(root)
        sys.meta_path.insert(0, self._hook)

    def add_root(self, root: PathLike) -> None:
        with self._lock:
            self._sources.add_root(os.fspath(root))

    def close(self) -> None:
        """Stop remembering imports. Modules stay as they are."""
        if self._hook in sys.meta_path:
            sys.meta_path.remove(self._hook)

    def loaded(self) -> Iterator[tuple[str, Source]]:
        """The modules that can be reloaded, with the source that each one runs."""
        for name, _ in self._sources.loaded():
            yield name, self._sources[name]

    def reload(self, paths: Iterable[PathLike], mode: Mode = "auto") -> ReloadReport:
        """Prepare and commit what is on disk. Raises ReloadError, and has changed nothing."""
        sources: dict[PathLike, bytes | None] = {}
        for path in paths:
            try:
                sources[path] = Path(path).read_bytes()
            except FileNotFoundError:
                sources[path] = None
        return self.prepare(sources, mode=mode).commit()

    def prepare(self, sources: Mapping[Any, bytes | None], *, mode: Mode = "auto") -> Prepared:
        """Compile, plan and run beside the live modules; None for a deleted file.

        Nothing visible changes. Raises ReloadError for code that does not compile or does not
        run, and with mode "patch" for what only a new process could take.
        """
        with self._lock, _collector_paused():
            texts = {os.path.abspath(os.fspath(path)): text for path, text in sources.items()}
            changed = self._compiled(texts)
            prepared = Prepared(self, texts, mode)
            prepared.verdicts.update(self._verdicts_without_a_run(texts))
            if mode in ("off", "respawn"):
                for name in changed if mode == "respawn" else ():
                    path = self._sources[name].path
                    prepared.verdicts[name] = Verdict(name, path, "respawn", "as asked for")
            else:
                prepared.stage_changes(changed)
            refused = [v for v in prepared.verdicts.values() if v.action == "respawn"]
            if mode == "patch" and refused:
                prepared.abort()
                verdict = refused[0]
                classes = ", ".join(verdict.classes) or verdict.module
                message = f"{classes} cannot be patched in place: {verdict.reason}"
                raise ReloadError(message, phase="run", path=verdict.path)
            return prepared

    def _compiled(self, texts: Mapping[str, bytes | None]) -> dict[str, Source]:
        """New sources by module, for the modules that are loaded and do change."""
        changed: dict[str, Source] = {}
        errors: list[ReloadError] = []
        for path, text in texts.items():
            if text is None or not path.endswith(".py"):
                continue
            names = self._sources.names_at(path)
            spelled = self._sources[names[0]].path if names else path
            source = Source(spelled, text)
            names = [name for name in names if self._sources[name].text != text]
            try:
                if names or not self._sources.names_at(path):
                    source.code  # noqa: B018  compiles
            except (SyntaxError, ValueError) as error:
                errors.append(ReloadError.of_syntax(error, path))
            changed.update(dict.fromkeys(names, source))
        if errors:
            raise ReloadError.of_many(errors)
        return changed

    def _verdicts_without_a_run(self, texts: Mapping[str, bytes | None]) -> dict[str, Verdict]:
        verdicts = {}
        for path, text in texts.items():
            names = self._sources.names_at(path)
            for name in names:
                if text is None:
                    reason = "file deleted; the module stays loaded"
                    verdicts[name] = Verdict(name, path, "unloaded", reason)
                elif not path.endswith(".py"):
                    verdicts[name] = Verdict(name, path, "respawn", "extension module")
            if not names:
                reason = "no module of this process was loaded from it"
                verdicts[path] = Verdict("", path, "unloaded", reason)
        return verdicts

    def _importers(self, module: str, names: Collection[str]) -> Iterator[ModuleEdit]:
        """Modules that may take one of `names` from `module`: their text mentions both."""
        last = module.rpartition(".")[2].encode()
        wanted = [name.encode() for name in names]
        for name, loaded in self._sources.loaded():
            source = self._sources[name]
            text = source.text
            if name == module or not (last in text or b"from ." in text):
                continue
            if b"import *" in text or any(one in text for one in wanted):
                try:
                    yield unedited(name, loaded, source)
                except (SyntaxError, ValueError):
                    continue  # already broken on disk when we first looked


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """A syntax tree is so many objects that it sets off a full collection, 0.2 s with torch."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class Prepared:
    """A reload that can still go either way. Made by `Reloader.prepare`."""

    def __init__(self, reloader: Reloader, texts: Mapping[str, bytes | None], mode: Mode) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self._reloader = reloader
        self._generation = reloader._generation
        self._texts = texts
        self._mode = mode
        self._sources: dict[str, Source] = {}
        self._plan = Plan({})
        self._stage = Stage(reloader._hook)
        self._functions = FunctionPatch()
        self._adoption = Adoption(self._stage, self._functions)
        self._caches: list[Callable[[], None]] = []
        self._report = ReloadReport()
        self._spent = False

    @property
    def needs_respawn(self) -> bool:
        return any(verdict.action == "respawn" for verdict in self.verdicts.values())

    def stage_changes(self, changed: Mapping[str, Source]) -> None:
        running, hook = self._reloader._sources, self._reloader._hook
        live = {name: LiveModule(name, sys.modules[name], running[name]) for name in changed}
        edits = [edited(live[name], source) for name, source in changed.items()]
        known = [name for name, _ in running.loaded()]
        self._plan = make_plan(edits, self._reloader._importers, known)
        self._sources = dict(changed)
        if any(plan.run or plan.twin for plan in self._plan.modules.values()):
            sources = {n: changed.get(n) or running[n] for n in self._plan.modules}
            hook.pending = {os.path.realpath(p): t for p, t in self._texts.items() if t is not None}
            importlib.invalidate_caches()
            try:
                self._stage.run(self._plan, sources, list(running.loaded()))
            except BaseException:
                self.abort()
                raise
            finally:
                hook.pending = {}
        self._adoption.adopt(self._plan)
        for name, source in changed.items():
            move_code(live[name], source, self._plan.modules[name], self._functions)
        self._judge(changed)
        self._caches = list(_caches_of(self._plan))

    def _judge(self, changed: Mapping[str, Source]) -> None:
        """Verdicts and the report, from the plan."""
        report = self._report
        for name, plan in self._plan.modules.items():
            path = self._reloader._sources[name].path
            if name not in changed and not plan.run:
                continue
            statements = [plan.edit.new[index] for index in sorted(plan.run)]
            reran = [s for s in statements if not (s.is_definition or s.is_import)]
            refused = self._adoption.refused.get(name, {})
            report.modules.append(name)
            report.reran += [f"{name}:{s.first} {s.title}" for s in reran]
            report.classes += [
                f"{name}.{s.name}" for s in statements if s.is_class and s.name not in refused
            ]
            if refused:
                reasons = "; ".join(f"{cls}: {reason}" for cls, reason in refused.items())
                verdict = Verdict(name, path, "respawn", reasons, tuple(refused))
            elif reran:
                lines = ", ".join(str(statement.first) for statement in reran)
                verdict = Verdict(name, path, "rerun", f"statements at lines {lines} run again")
            else:
                why = "definitions change in place" if name in changed else "follows an import"
                verdict = Verdict(name, path, "patch", why)
            self.verdicts[name] = verdict
        for function in self._functions.patched:
            qualname = function.__qualname__
            report.functions.append(f"{function.__module__}.{qualname}")
            owner = qualname.rpartition(".")[0]
            if owner and "<locals>" not in owner:
                report.classes.append(f"{function.__module__}.{owner}")
        report.functions = sorted(set(report.functions))
        report.classes = sorted(set(report.classes))
        for owner in report.classes:
            module = next((n for n in self.verdicts if owner.startswith(f"{n}.")), None)
            if module is not None and self.verdicts[module].action in ("patch", "rerun"):
                known = self.verdicts[module]
                own = owner.removeprefix(f"{module}.")
                self.verdicts[module] = Verdict(
                    known.module, known.path, known.action, known.reason, (*known.classes, own)
                )

    def abort(self) -> None:
        """Drop it; the process is as if it had never been prepared."""
        if not self._spent:
            self._spent = True
            self._stage.close(keep_imported=False)
            self._adoption.forget_twins()

    def commit(self) -> ReloadReport:
        """Switch to the new code. On an exception everything is put back; raises ReloadError."""
        started = time.perf_counter()
        reloader, report = self._reloader, self._report
        with reloader._lock:
            if self._spent or self._generation != reloader._generation:
                self.abort()
                message = "prepared for code that this process no longer runs; prepare again"
                raise ReloadError(message, phase="commit")
            self._spent = True
            log = UndoLog()
            try:
                self._stage.close(keep_imported=True)
                if self._stage.namespaces:
                    self._adoption.settle()
                log.apply(self._flips())
                self._refresh()
            except BaseException as error:
                log.rollback()
                self._refresh()
                self._stage.close(keep_imported=False)
                if not isinstance(error, Exception):
                    raise
                raise ReloadError.of_exception(error, "commit") from error
            self._adoption.forget_twins()
            self._stage.made.clear()
            reloader._generation += 1
            generation = reloader._generation
            report.seconds = time.perf_counter() - started
        report._undo = lambda: self._undo(log, generation)
        return report

    def _flips(self) -> Iterator[Flip]:
        yield from self._functions.flips
        yield from self._adoption.classes.flips
        yield from self._adoption.bindings
        for held in self._stage.held_back:
            yield held.flip(self._functions.live_of)
        for name, source in self._sources.items():
            yield Action(lambda name=name, source=source: self._record(name, source))  # type: ignore[misc]

    def _record(self, name: str, source: Source) -> Callable[[], None]:
        before = self._reloader._sources[name]
        self._reloader._sources.record(name, source)
        return lambda: self._reloader._sources.record(name, before)

    def _undo(self, log: UndoLog, generation: int) -> None:
        with self._reloader._lock:
            if generation != self._reloader._generation:
                raise RuntimeError("another reload came after this one; undo that one first")
            log.rollback()
            self._stage.close(keep_imported=False)
            self._refresh()
            self._reloader._generation += 1

    def _refresh(self) -> None:
        """Drop what others computed from the code that was there a moment ago."""
        for clear in self._caches:
            clear()
        if self._mode != "off":
            for path in self._texts:
                linecache.cache.pop(path, None)
            for source in self._sources.values():
                linecache.cache.pop(source.path, None)
        forget_bytecode(self._texts)
        importlib.invalidate_caches()
        dynamo: ModuleType | None = sys.modules.get("torch._dynamo")
        if dynamo is not None and (self._functions.flips or self._stage.namespaces):
            # Compiled graphs guard neither inlined functions nor class attributes.
            dynamo.reset()


def _caches_of(plan: Plan) -> Iterator[Callable[[], None]]:
    """`cache_clear` of everything that behaves differently from now on."""
    for name, module_plan in plan.modules.items():
        module = sys.modules[name]
        touched = {b for i in module_plan.twin for b in module_plan.edit.new[i].binds}
        for key in touched | module_plan.marks.keys():
            for part in parts_of(vars(module).get(key), name):
                if not isinstance(part, type) and callable(getattr(part, "cache_clear", None)):
                    yield part.cache_clear
