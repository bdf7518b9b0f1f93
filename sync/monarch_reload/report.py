"""The findings of a prepare and the report of a commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

Action = Literal["patch", "rerun", "respawn", "unloaded"]


_SPOKEN: Mapping[Action, str] = {
    "patch": "patch",
    "rerun": "re-run",
    "respawn": "needs respawn",
    "unloaded": "file only",
}


class ModuleVerdict(msgspec.Struct, frozen=True):
    """The verdict on one module.

    patch: functions and classes change in place. rerun: top-level statements run, too. respawn: a
    part of the change needs a new process. unloaded: only the file changes, and nothing in this
    process.
    """

    module: str
    path: str
    action: Action
    reason: str
    classes: tuple[str, ...] = ()


Verdict = ModuleVerdict  # its name in the package


@dataclass
class ReloadReport:
    """The result of a reload. Prints as a table.

    Names are qualified: `package.module.Class.method`; `reran` are `module:line statement`.

    `verdicts` are by module name, or by path for files that no module was loaded from.
    `prepare_seconds` is the time that preparing took, while the old code ran; `seconds` that of the
    commit.

    `files` are all changed files, as absolute paths, config files included. `undone`: the report
    was made again because the change was undone; the old code runs. `threads` are the threads that
    new top-level code started in its trial; they go on in any case. `stays` lists effects of
    deleted statements that only a new process would be without. `compiles_again` are the functions
    that torch.compile compiles at their next call. `warnings` say, with file and line, which errors
    edited functions will raise when they run. `at_start` are functions with new code that run only
    when a run begins, `for_next_start` the warnings about that start.
    """

    modules: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    reran: list[str] = field(default_factory=list)
    verdicts: dict[str, ModuleVerdict] = field(default_factory=dict)
    prepare_seconds: float = 0.0
    seconds: float = 0.0
    files: list[str] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)
    stays: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    compiles_again: list[str] = field(default_factory=list)
    at_start: list[str] = field(default_factory=list)
    for_next_start: list[str] = field(default_factory=list)
    undone: bool = False
    _undo: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    def touches(self, path: str | os.PathLike[str]) -> bool:
        """Return whether a file is among those that changed.

        A relative path is relative to the working directory, or to a folder of the workspace.
        """
        wanted = os.fspath(path)
        whole = os.path.realpath(wanted)
        tail = os.sep + os.path.normpath(wanted)
        is_relative = not os.path.isabs(wanted) and not tail.startswith(f"{os.sep}..")
        return any(
            os.path.realpath(file) == whole or (is_relative and file.endswith(tail))
            for file in self.files
        )

    def warn(self, text: str, *, for_next_start: bool = False) -> None:
        """Warn the author of the change, from a `__reload__`; the change is still applied.

        `for_next_start`: the text is about the next start of the run. It is not shown if this
        change restarts everything, because the restart then shows what it says.
        """
        if text not in self.warnings:
            self.warnings.append(text)
            if for_next_start:
                self.for_next_start.append(text)

    def counts_from_next_start(self, name: str, of: str = "the run") -> None:
        """Warn that the new code of a function does not run before the next start of ``of``."""
        self.warn(f"{name} counts from the next start of {of}", for_next_start=True)

    @property
    def needs_respawn(self) -> bool:
        """Whether a part of the change takes effect only in a new process."""
        return any(verdict.action == "respawn" for verdict in self.verdicts.values())

    def __str__(self) -> str:
        if not self.verdicts:
            return "nothing to reload"
        count = len(self.modules)
        head = (
            f"reloaded {count} module{'' if count == 1 else 's'} in"
            f" {1000 * (self.prepare_seconds + self.seconds):.1f} ms"
            f" (prepare {1000 * self.prepare_seconds:.1f}, commit {1000 * self.seconds:.1f})"
        )
        rows = [("module", "verdict", "what")]
        for key, verdict in self.verdicts.items():
            details = self._what(verdict) or [verdict.reason]
            first = (verdict.module or key, _SPOKEN[verdict.action], details[0])
            rows += [first, *(("", "", more) for more in details[1:])]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = (f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows)
        again = ", ".join(self.compiles_again)
        more = (
            *([f"  compiles again: {again}"] if again else []),
            *(f"  {text}" for text in self.stays),
            *(f"  warning: {w}" for w in self.warnings),
        )
        return "\n".join([head, *lines, *more])

    def _what(self, verdict: ModuleVerdict) -> list[str]:
        """Return what the table shows of a module: the patched definitions and the statements that
        ran, without the module's name. Empty if it was neither patched nor run."""
        if verdict.action not in ("patch", "rerun"):
            return []
        start = f"{verdict.module}."
        functions = [name.removeprefix(start) for name in self.functions if name.startswith(start)]
        owners = {name.rpartition(".")[0] for name in functions}
        classes = [name for name in verdict.classes if name not in owners]
        start = f"{verdict.module}:"
        lines = [f"line {s.removeprefix(start)}" for s in self.reran if s.startswith(start)]
        definitions = ", ".join([*classes, *functions])
        return [part for part in (definitions, *lines) if part]

    def undo(self) -> None:
        """Restore the old code, because another rank failed to take the new.

        Only the latest reload can be undone, once, and in the process that made it.
        """
        if self._undo is None:
            raise RuntimeError("nothing to undo: undone before, or made in another process")
        undo, self._undo = self._undo, None
        undo()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_undo": None}


def listed(names: Iterable[str]) -> str:
    """Return the first three names, and how many more there are: `a, b, c and 2 more`."""
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"
