"""The reloader of one process: takes new sources, refuses or prepares them."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import ReloadError
from .prepared import Mode, Prepared, Process
from .report import ReloadReport, Verdict
from .source import Source

PathLike = str | os.PathLike[str]


class Reloader:
    """Reloads modules that were loaded from `roots`, now or later, when told that they changed.

    Make it before the modules are imported where possible: what a module runs is then known
    from its import, and not from a file that may have changed since.
    """

    def __init__(self, roots: Iterable[PathLike]) -> None:
        self._process = Process()
        self._sources, self._hook = self._process.sources, self._process.hook
        self._lock = self._process.lock
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
            prepared = Prepared(self._process, texts, mode)
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
                errors.append(ReloadError.of_syntax(error, path, text))
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
