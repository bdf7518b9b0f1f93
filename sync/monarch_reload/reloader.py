"""The reloader of one process: takes new sources, refuses or prepares them."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from msgspec.structs import replace

from monarch_reload.audit.audit import Audit
from monarch_reload.audit.findings import AuditReport
from monarch_reload.data_files import is_config
from monarch_reload.errors import NeedsRespawn, ReloadError, files_of
from monarch_reload.live.all_objects import collector_paused
from monarch_reload.live.frozen import thaw, watch_freezes
from monarch_reload.plan.gone_modules import imports_of_gone
from monarch_reload.plan.reached_modules import importable_as, reached_modules
from monarch_reload.prepared import Mode, Prepared, Process
from monarch_reload.report import ModuleVerdict, ReloadReport
from monarch_reload.reshaping import other_places, other_shape
from monarch_reload.running_files import RunningFiles
from monarch_reload.source.source import ModuleSource
from monarch_reload.source.splice import spliced
from monarch_reload.trial.budget import Budget, OverBudget
from monarch_reload.trial.spare import NewState, Spare, import_in_subprocess, is_surely_wrong

PathLike = str | os.PathLike[str]


class _ChangedFiles(msgspec.Struct):
    """The files that one ``Reloader.prepare`` is about, by absolute path."""

    texts: dict[str, bytes | None]  # None for a deleted file
    arriving: Mapping[str, str]  # further new files, each with the path of its text until then
    path: Sequence[str]  # `sys.path` after the change
    moved: dict[str, list[str]] = {}  # by new file, the modules that move there

    @property
    def moved_names(self) -> set[str]:
        return {name for names in self.moved.values() for name in names}


class Reloader:
    """Reloads modules that are loaded from `roots`, now or later.

    Make it before the modules are imported, if possible: then the text that a module runs is known
    from its import, not from a file that may have changed since. Otherwise pass `imported`: it
    returns, by `__file__`, the texts that files had when their modules were imported.

    If new code cannot be prepared in place, `spare` imports it in a fresh process. If this import
    succeeds, the code is not refused: the report says that it needs a new process.
    """

    def __init__(
        self,
        roots: Iterable[PathLike],
        *,
        imported: Callable[[], Mapping[str, bytes]] = dict,
        spare: Spare = import_in_subprocess,
    ) -> None:
        if isinstance(roots, str | bytes | os.PathLike):
            raise TypeError(f"roots is a list of folders: [{roots!r}]")
        self._process = Process(imported)
        self._spare = spare
        self.budget: Callable[[float], Budget] = Budget
        self._sources, self._hook = self._process.sources, self._process.hook
        self._lock = self._process.lock
        self._roots: list[str] = []
        self._files = RunningFiles(self._sources, self._roots)
        watch_freezes()
        for root in roots:
            self.add_root(root)
        sys.meta_path.insert(0, self._hook)

    def add_root(self, root: PathLike) -> None:
        """Follow modules whose files are in the folder ``root``, too."""
        with self._lock:
            path = os.path.abspath(os.fspath(root))
            if path not in self._roots:
                self._roots.append(path)
            self._sources.add_root(os.fspath(root))

    def close(self) -> None:
        """Stop remembering imports. Modules stay as they are."""
        if self._hook in sys.meta_path:
            sys.meta_path.remove(self._hook)

    def __enter__(self) -> Reloader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def loaded(self) -> Iterator[tuple[str, ModuleSource]]:
        """Yield the modules that can be reloaded, with the source that each one runs."""
        yield from self._sources.running()

    def changed_paths(self) -> list[str]:
        """Return the files of loaded modules whose text on disk is not the text that runs. A
        deleted file is returned by one call only.

        Config files that these modules name are included, once for each save.
        """
        with self._lock:
            return self._files.changed()

    def reload(self, paths: Iterable[PathLike] | None = None, mode: Mode = "auto") -> ReloadReport:
        """Prepare and commit what is on disk, in this process.

        `paths` are absolute, or relative to a root or the working directory; a folder means all
        loaded files in it; deleted and new files may be among them. Default: `changed_paths`.

        For a config file (toml, json, yaml, ini, cfg), the top-level statements that name the file
        run again, and so do statements that call functions which name it.

        Raises ReloadError, without changing anything, for code that does not compile or run, and
        NeedsRespawn for a change that only a new process could take. With mode "respawn", the
        report says which changes need a new process, and nothing changes; "off" does nothing.
        """
        started = time.perf_counter()
        chosen = self.changed_paths() if paths is None else self._resolved(paths)
        sources: dict[PathLike, bytes | None] = {}
        for path in chosen:
            try:
                sources[path] = Path(path).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                sources[path] = None
        prepared = self.prepare(sources, mode=mode)
        if mode == "auto":
            _refuse_what_needs_respawn(prepared)
        prepared.report.prepare_seconds = time.perf_counter() - started
        try:
            return prepared.commit()
        except ReloadError:
            # Raises NeedsRespawn, or an error of the code itself, if there is one.
            _refuse_what_needs_respawn(self.prepare(sources, mode=mode))
            raise

    def audit(
        self, files: Iterable[PathLike] = (), *, pause: Callable[[], None] = lambda: None
    ) -> AuditReport:
        """Return what still runs old code, of all modules reloaded so far.

        `files` are further changed files: modules that were loaded from them unnoticed are reported
        too. `pause` is called between slices of the work, so that other threads can run. Takes part
        of a second.
        """
        process = self._process
        paths = [os.path.abspath(os.fspath(file)) for file in files]

        def look() -> AuditReport:
            thaw(process.history.names)
            audit = Audit(
                self._sources, process.history, process.expected, ours=process.held, pause=pause
            )
            return audit.report(paths)

        report = look()
        if not report.ok:
            # It may be garbage that is not collected yet, as in a program that turned the collector
            # off. Only objects that survive a collection are reported.
            gc.collect()
            report = look()
        return report

    def _resolved(self, paths: Iterable[PathLike]) -> list[str]:
        loaded = {source.path for _, source in self.loaded()}
        resolved: dict[str, None] = {}
        for path in [os.fspath(path) for path in paths]:
            candidates = [os.path.join(base, path) for base in (*self._roots, os.getcwd())]
            loaded_paths = [p for p in candidates if self._sources.names_at(p)]
            existing = [p for p in candidates if os.path.exists(p)]
            for candidate in loaded_paths or existing[:1] or candidates[:1]:
                whole = os.path.normpath(candidate)
                if os.path.isdir(whole):
                    resolved.update((p, None) for p in loaded if p.startswith(f"{whole}{os.sep}"))
                else:
                    resolved[whole] = None
        return list(resolved)

    def prepare(
        self,
        sources: Mapping[Any, bytes | None],
        *,
        mode: Mode = "auto",
        as_far_as_possible: bool = False,
        arriving: Mapping[str, str] | None = None,
        folders: Sequence[str] = (),
        deleted: Collection[str] = (),
    ) -> Prepared:
        """Compile, plan and run the new code beside the live modules; ``None`` marks a deleted
        file.

        `arriving` are further new files that are not in place yet, each with the path at which its
        text is now. They are read when new code imports them. `folders` will come first on
        `sys.path`. If a module's file is deleted and another file has the same module name (a new
        file, or one elsewhere on `sys.path`), the module moves to that file. `deleted` are further
        deleted files, which no module was loaded from.

        Nothing visible changes. Raises ReloadError for code that does not compile or does not run,
        and with mode "patch" for an edit that only a new process could take. A class that cannot
        change in place stays as it is; with `as_far_as_possible`, it takes the new methods.
        """
        # A syntax tree has so many objects that making it would start a full collection, which
        # takes 0.2 s with torch.
        with self._lock, collector_paused():
            budget = self.budget(self._sources.import_seconds())
            texts = {os.path.abspath(os.fspath(path)): text for path, text in sources.items()}
            change = _ChangedFiles(
                texts, arriving or {}, list(dict.fromkeys([*folders, *sys.path]))
            )
            self._find_moved(change)
            changed = self._compiled(change, budget)
            thaw(changed)

            def new_prepared() -> Prepared:
                prepared = Prepared(self._process, texts, change.arriving, mode, budget)
                prepared.report.files = [p for p, text in texts.items() if not self._runs(p, text)]
                prepared.verdicts.update(self._verdicts_without_a_run(change))
                prepared.report.warnings = self._gone(change, deleted, changed)
                return prepared

            prepared = new_prepared()
            if mode == "respawn":
                prepared.respawns(changed, "as asked for")
            elif mode != "off":
                sound = {n: s for n, s in changed.items() if n not in prepared.verdicts}
                try:
                    for source in sound.values():
                        refusal = self._process.unfit.get((source.path, source.text))
                        if refusal is not None:
                            raise refusal
                    configs = [p for p, text in texts.items() if text and is_config(p)]
                    prepared.stage_changes(sound, configs, as_far_as_possible)
                except Exception as error:
                    state = self._new_state(change)
                    reached = self._reached(error, change, state)
                    reason = self._tried_elsewhere(error, state, reached, changed)
                    prepared = new_prepared()
                    prepared.respawns(sound, reason)
            if mode == "patch":
                _refuse_what_needs_respawn(prepared)
            return prepared

    def _gone(
        self, change: _ChangedFiles, deleted: Collection[str], changed: Mapping[str, ModuleSource]
    ) -> list[str]:
        """Return warnings about imports of modules that can no longer be found."""
        texts, moving = change.texts, change.moved_names
        gone: set[str] = set()
        for path in [*(path for path, text in texts.items() if text is None), *deleted]:
            for name in self._sources.names_at(path) or importable_as(path, change.path):
                others = other_places(name, path, filter(None, change.path))
                if name not in moving and not any(
                    texts.get(other, other != path and os.path.exists(other)) for other in others
                ):
                    gone.add(name)
        if not gone:
            return []
        sources = {**dict(self._sources.running()), **changed}
        return list(imports_of_gone(sources.items(), gone))

    def _tried_elsewhere(
        self,
        error: Exception,
        state: NewState,
        reached: Collection[str],
        changed: Mapping[str, ModuleSource],
    ) -> str:
        """Try the import in another process, and return why a fresh process is needed.

        Raises ReloadError if the code fails there too, would fail in any process, or is that of the
        program itself (``__main__``). The trial first imports only the ``reached`` modules. If that
        fails with another error than in this process, it may lack the effects of some other
        module's import, so all modules are imported.
        """
        message, location = f"{type(error).__name__}: {error}", ""
        if isinstance(error, ReloadError):
            if is_surely_wrong(error, changed) or "__main__" in changed:
                raise error
            message = error.message
            location = f", {error.path}:{error.line}" if error.line else ""
        modules = [(name, path) for name, path in state.modules if name in reached]
        refusal = self._spare(replace(state, modules=modules))
        is_same = isinstance(error, ReloadError) and refusal and refusal.message == message
        if refusal is not None and not is_same and len(modules) < len(state.modules):
            refusal = self._spare(state)
        if refusal is None:
            if isinstance(error, OverBudget):
                return str(error)
            return f"only a fresh process imports it; in this one it came to {message}{location}"
        if isinstance(error, ReloadError) and refusal.message == message:
            raise error
        raise refusal from error

    def _new_state(self, change: _ChangedFiles) -> NewState:
        """Return the files that will be on disk, and the loaded modules that will still exist."""
        files: dict[str, bytes | str | None] = {**change.arriving, **change.texts}
        paths = {name: path for path, names in change.moved.items() for name in names}
        modules = [
            (name, paths.get(name, self._sources[name].path))
            for name, _ in self._sources.running()
            if name not in ("__main__", "__mp_main__")
        ]
        gone = {path for path, text in change.texts.items() if text is None}
        return NewState(
            {os.path.realpath(path): content for path, content in files.items()},
            [(name, path) for name, path in modules if path.endswith(".py") and path not in gone],
            change.path,
        )

    def _reached(self, error: Exception, change: _ChangedFiles, state: NewState) -> set[str]:
        """Return the modules that the trial in another process must import: changed modules,
        modules that import them, and modules in which the attempt in this process failed.

        If a changed file is no Python file, it is unknown which modules read it, and all modules
        are returned.
        """
        texts = change.texts.items()
        same = {os.path.realpath(path) for path, text in texts if self._runs(path, text)}
        files = [path for path in state.files if path not in same]
        if any(not path.endswith(".py") for path in files):
            return {name for name, _ in state.modules}
        changed = change.moved_names
        changed.update(name for path in files for name in self._sources.names_at(path))
        changed.update(name for path in files for name in importable_as(path, state.path))
        reached = reached_modules(changed, {os.path.dirname(path) for path in files}, self._sources)
        failed = {path for cause in (error, error.__cause__) if cause for path in files_of(cause)}
        return reached.union(name for path in failed for name in self._sources.names_at(path))

    def _runs(self, path: str, text: bytes | None) -> bool:
        """Return whether modules were loaded from the file ``path``, and all of them run
        ``text``."""
        names = self._sources.names_at(path)
        return bool(names) and all(self._sources[name].text == text for name in names)

    def _find_moved(self, change: _ChangedFiles) -> None:
        """Find the modules that move to another file: their own file is deleted, and the import
        system would find the module at the other path. Note them in ``change.moved``.

        If such a file is still arriving, its text is read into ``change.texts``.
        """
        texts = change.texts
        untold = [other_shape(path) for path, text in texts.items() if text is not None]
        gone = [path for path, text in texts.items() if text is None]
        gone += [path for path in untold if path not in texts and not os.path.exists(path)]
        for old_path in gone:
            for name in self._sources.names_at(old_path):
                for new_path in other_places(name, old_path, filter(None, change.path)):
                    if new_path not in texts and new_path in change.arriving:
                        texts[new_path] = Path(change.arriving[new_path]).read_bytes()
                    if texts.get(new_path) is not None and not self._sources.names_at(new_path):
                        change.moved.setdefault(new_path, []).append(name)
                        break

    def _compiled(self, change: _ChangedFiles, budget: Budget) -> dict[str, ModuleSource]:
        """Return the new source of each loaded module that changes, by module name. Raises
        ReloadError for sources that do not compile.

        When the budget is used up, the remaining sources are returned without being compiled: a
        fresh process will compile them.
        """
        changed: dict[str, ModuleSource] = {}
        errors: list[ReloadError] = []
        for path, text in change.texts.items():
            if text is None or not path.endswith(".py"):
                continue
            names, renamed = self._sources.names_at(path), change.moved.get(path, [])
            before = self._sources[names[0]] if names else None
            source = ModuleSource(before.path if before else path, text)
            is_late = budget.is_over()
            if before is not None and before.text != text and not is_late:
                source = spliced(before, text) or source
            names = [name for name in names if self._sources[name].text != text] + renamed
            try:
                if not is_late and (names or not self._sources.names_at(path)):
                    source.codes  # noqa: B018  compiles
            except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
                errors.append(ReloadError.of_syntax(error, path, text))
            changed.update(dict.fromkeys(names, source))
        if errors:
            raise ReloadError.of_many(errors)
        return changed

    def _verdicts_without_a_run(self, change: _ChangedFiles) -> dict[str, ModuleVerdict]:
        """Return the verdicts that need no trial run: on deleted files, on binary modules, and on
        files that no module was loaded from."""
        verdicts = {}
        moving = change.moved_names
        for path, text in change.texts.items():
            names = self._sources.names_at(path)
            if path in change.moved:
                continue
            for name in [name for name in names if name not in moving]:
                if text is None:
                    reason = "deleted; its module runs on"
                    verdicts[name] = ModuleVerdict(name, path, "unloaded", reason)
                elif not path.endswith(".py"):
                    kind = "bytecode without source" if path.endswith(".pyc") else "extension"
                    verdicts[name] = ModuleVerdict(name, path, "respawn", f"{kind} module")
                elif self._sources[name].text == text:
                    continue
                elif not isinstance(sys.modules[name], ModuleType):
                    reason = "it put another object in its place in sys.modules"
                    verdicts[name] = ModuleVerdict(name, path, "respawn", reason)
            if not names:
                reason = "no module of this process was loaded from it"
                verdicts[path] = ModuleVerdict("", path, "unloaded", reason)
        return verdicts


def _refuse_what_needs_respawn(prepared: Prepared) -> None:
    refused = [v for v in prepared.verdicts.values() if v.action == "respawn"]
    if refused:
        prepared.abort()
        raise NeedsRespawn.of_verdicts(refused)
