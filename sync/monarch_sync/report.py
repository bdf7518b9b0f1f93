"""The report of a sync: rich enough to assert on, short enough to read."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from monarch_sync.errors import SyncFailed
from monarch_sync.host_report import HostReport, host_rows
from monarch_sync.words import (
    clipped,
    clipped_around,
    counted,
    num_cells,
    plain,
    printable,
    some,
    took,
)

_MAX_PROBLEMS = 10
_MAX_NAMED = 3


@dataclass(frozen=True)
class Problem:
    """A path that could not be synced, and why. The sync of all other paths goes on.

    ``is_unreadable``: the path exists and could not be read. ``is_kept``: the hosts keep what they
    have at the path.
    """

    path: str
    reason: str
    is_unreadable: bool = False
    is_kept: bool = False

    def __str__(self) -> str:
        return f"{printable(self.path)}: {plain(self.reason)}"

    def line(self) -> str:
        """Return one line: what a push does about the path, and why."""
        return f"{_FATES[self.is_kept]} {self}"


_FATES = {True: "hosts keep what they have of", False: "left out"}


@dataclass(frozen=True)
class Refusal:
    """Why new code was refused, and by which process. ``path`` is the author's path; ``line`` and
    ``column`` count from 1, and are 0 if unknown; ``ranks`` are the processes' names."""

    message: str
    path: str = ""
    line: int = 0
    column: int = 0
    text: str = ""
    traceback: str = ""
    ranks: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"{printable(self.path)}:{self.line}" if self.line else printable(self.path)
        lines = [where] if where else []
        if self.text:
            stripped = self.text.strip()
            lines.append(f"    {plain(stripped)}")
            indent = len(self.text) - len(self.text.lstrip())
            if self.column:
                # As wide as the text above it, tabs included.
                prefix = stripped[: max(0, self.column - 1 - indent)]
                blank = "".join(c if c == "\t" else " " * num_cells(printable(c)) for c in prefix)
                lines.append(f"    {blank}^")
        return "\n".join([*lines, plain(self.message)])


_OWED = "_owed"
_WAIT = "_wait"


@dataclass
class SyncReport:
    """One push, over all hosts. ``print(report)`` gives a table, ``to_dict()`` all of it as data.

    If there are ``errors``, no host and no process has changed, and ``generation`` is the old one.
    """

    generation: int = 0
    digest: str = ""
    hosts: list[HostReport] = field(default_factory=list)
    changed_files: list[str] = field(default_factory=list)
    #: Those of the changed files that were deleted.
    deleted_files: list[str] = field(default_factory=list)
    #: The duration of the push, and its parts.
    seconds: float = 0.0
    seconds_by_step: dict[str, float] = field(default_factory=dict)
    modules_reloaded: list[str] = field(default_factory=list)
    functions_patched: list[str] = field(default_factory=list)
    #: Functions that torch.compile compiles when they are next called.
    compiles_again: list[str] = field(default_factory=list)
    #: The number of live actors by class.
    actors_patched: dict[str, int] = field(default_factory=dict)
    #: Changes that no running process could take, as ``module: reason``.
    needs_respawn: list[str] = field(default_factory=list)
    #: The procs that were replaced by new ones for these changes.
    procs_respawned: list[str] = field(default_factory=list)
    #: How many actors of each class were made again in the new procs.
    actors_respawned: dict[str, int] = field(default_factory=dict)
    num_procs: int = 0
    problems: list[Problem] = field(default_factory=list)
    #: Why the push was refused.
    errors: list[str] = field(default_factory=list)
    #: The refused code, with file, line and column.
    refusals: list[Refusal] = field(default_factory=list)
    #: What else to know: folders that were synced unasked, a lock file that changed.
    notes: list[str] = field(default_factory=list)
    #: Code that was taken and will fail when it runs: unknown names, calls that do not fit.
    warnings: list[str] = field(default_factory=list)
    #: Old code that still runs, and what keeps old code by design. An audit fills these in after
    #: the push, while all processes continue (`wait_for_audit`).
    stale: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    audit_seconds: float = 0.0
    #: Whether the code was refused after hosts showed it, so that the push made two generations:
    #: the new one, and one that restores the old state.
    was_taken_back: bool = False

    @property
    def ok(self) -> bool:
        """Whether every host and every process has the new state."""
        self._seen()
        return not self.errors

    @property
    def is_green(self) -> bool:
        """Whether the push succeeded and, as far as the audit has found by now, nothing runs old
        code."""
        return self.ok and not self.stale

    def audit_comes(self, wait: Callable[[float], bool]) -> None:
        """Set the function that waits for the audit: called with a number of seconds, it returns
        whether the audit is finished."""
        vars(self)[_WAIT] = wait

    def wait_for_audit(self, seconds: float = 10.0) -> bool:
        """Wait until ``stale`` and ``kept`` are filled in; return whether they are. Takes part of a
        second if code changed, and no time otherwise."""
        wait: Callable[[float], bool] | None = vars(self).get(_WAIT)
        return wait is None or wait(seconds)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != _WAIT}

    def owe(self) -> None:
        """If there are errors, arrange that they are printed on stderr later. They are not printed
        if a program looks at this report first.
        """
        if self.errors:
            vars(self)[_OWED] = True

    def _seen(self) -> None:
        vars(self).pop(_OWED, None)

    def __del__(self) -> None:
        if vars(self).get(_OWED) and not sys.is_finalizing():
            sys.stderr.write(f"{self}\n")

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the text that a notebook shows."""
        printer.text(str(self))

    @property
    def is_whole(self) -> bool:
        """Whether all of the workspace could be read."""
        return not any(problem.is_unreadable for problem in self.problems)

    @property
    def bytes_sent(self) -> int:
        """The bytes of content and messages together, over all hosts."""
        return sum(host.bytes_sent for host in self.hosts)

    @property
    def is_change(self) -> bool:
        """Whether anything was changed on a host."""
        return bool(self.changed_files) or any(num for _, num in self._beside_files())

    def raise_for_errors(self) -> None:
        """Raise ``SyncFailed`` if the push was refused."""
        self._seen()
        if self.errors:
            raise SyncFailed(tuple(self.errors))

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON data, with ``ok`` and ``bytes_sent``."""
        return {"ok": self.ok, **dataclasses.asdict(self), "bytes_sent": self.bytes_sent}

    def to_json(self) -> str:
        """Return ``to_dict()`` as JSON on one line."""
        return json.dumps(self.to_dict())

    def one_line(self, width: int | None = None, *, ascii_only: bool = False) -> str:
        """Return the report in one line, such as ``✓ gen 42 3 files → 16 hosts 38 ms reloaded
        model.py patched Trainer×128``.

        At most ``width`` columns: names are replaced by numbers first.
        """
        for limit in (3, 2, 1, 0):
            line = "  ".join([self._what_moved(), *self._what_follows(limit)])
            line = _in_ascii(line) if ascii_only else line
            if width is None or num_cells(line) <= width:
                break
        mark = "..." if ascii_only else "…"
        return line if width is None else clipped(line, width, mark)

    def _what_moved(self) -> str:
        if not self.ok:
            if self.was_taken_back:
                outcome = f"taken back; all run the code of gen {self.generation}"
            elif self.generation:
                outcome = f"no rank changed; still on gen {self.generation}"
            else:
                outcome = "no rank changed; no generation there yet"
            return f"✗ refused  {took(self.seconds)}  {outcome}"
        num_behind = sum(bool(host.error) for host in self.hosts)
        hosts = counted(len(self.hosts) - num_behind, "host")
        moved = f"{self._what_changed()} → {hosts}"
        if num_behind:
            moved += f" ({num_behind:,} left behind)"
        mark = "!" if self.stale else "✓"
        return f"{mark} gen {self.generation}  {moved}  {took(self.seconds)}"

    def _what_changed(self) -> str:
        """Return the changes by kind, as ``3 files`` or ``1 link, 2 modes``."""
        other_changes = [counted(num, noun) for noun, num in self._beside_files() if num]
        files = counted(len(self.changed_files), "file")
        num_deleted = len(self.deleted_files)
        if num_deleted:
            is_all = num_deleted == len(self.changed_files)
            files += " deleted" if is_all else f" ({num_deleted:,} deleted)"
        return ", ".join(
            [files, *other_changes] if self.changed_files or not other_changes else other_changes
        )

    def _beside_files(self) -> list[tuple[str, int]]:
        """Return (noun, number) for links, modes and empty folders that changed, each with the
        highest number on any host."""
        nouns = ("link", "mode", "folder")
        return [
            (noun, max((getattr(host, f"num_{noun}s") for host in self.hosts), default=0))
            for noun in nouns
        ]

    def _what_follows(self, limit: int) -> list[str]:
        """Return the parts of ``one_line`` that come after the number of changes; empty if the push
        failed.

        Each part names at most ``limit`` things, and says how many more there are. With 0, it says
        only their number.
        """
        if not self.ok:
            return []
        actors = [f"{name}×{num}" for name, num in self.actors_patched.items()]
        total = sum(self.actors_patched.values())
        modules = list(dict.fromkeys(why.partition(":")[0] for why in self.needs_respawn))
        respawned = [f"{name}×{num}" for name, num in self.actors_respawned.items()]
        num_procs = counted(len(self.procs_respawned), "proc")
        moved, deleted, other_files = self._named()
        parts = (
            ("moved", moved, counted(len(moved), "file")),
            ("deleted", deleted, counted(len(deleted), "file")),
            ("", other_files, ""),
            ("reloaded", self.modules_reloaded, counted(len(self.modules_reloaded), "file")),
            ("patched", actors, counted(total, "actor")),
            ("respawned", respawned or [num_procs], num_procs)
            if self.procs_respawned
            else ("needs respawn:", modules, counted(len(modules), "module")),
        )
        return [
            f"{verb} {some([*map(printable, names)], limit) if limit else num}".strip()
            for verb, names, num in parts
            if names and (limit or num)
        ]

    def _named(self) -> tuple[list[str], list[str], list[str]]:
        """Return the files that ``one_line`` names, as (moved, deleted, others); all empty if too
        many files changed. Files of reloaded modules are left out, because the line names these
        modules.
        """
        if not 0 < len(self.changed_files) <= _MAX_NAMED:
            return [], [], []
        deleted = [path for path in self.changed_files if path in self.deleted_files]
        present = [path for path in self.changed_files if path not in self.deleted_files]
        moved = []
        for path in list(deleted):
            new = next(
                (candidate for candidate in present if _name(candidate) == _name(path)), None
            )
            if new is not None:
                deleted.remove(path)
                present.remove(new)
                moved.append(f"{path} to {new}")
        reloaded = {_name(module) for module in self.modules_reloaded}
        return moved, deleted, [path for path in present if _name(path) not in reloaded]

    def __str__(self) -> str:
        return self.table()

    def table(self, width: int | None = None, *, ascii_only: bool = False) -> str:
        """Return a table: the text of `one_line`, a row for each host, the seconds that the steps
        took, and lines about everything that a person should know.
        """
        self._seen()
        lines = [self.one_line(width, ascii_only=ascii_only)]
        lines += host_rows([host for host in self.hosts if self.ok and not host.error])
        lines += [f"  {line}" for line in self.behind_lines()]
        if self.ok and self.seconds_by_step:
            steps = (f"{name} {took(value)}" for name, value in self.seconds_by_step.items())
            lines.append(f"  {'  '.join(steps)}")
        lines += [f"  {line}" for line in self.kept_lines()]
        lines += [f"  needs respawn: {printable(why)}" for why in self.needs_respawn]
        lines += [f"  {line}" for line in problem_lines(self.problems)]
        code_lines = [*self.compile_lines(), *self.warning_lines(), *self.stale_lines()]
        lines += [f"  {line}" for line in (*code_lines, *self.audit_kept_lines())]
        for text in (*self.notes, *self.errors):
            text_lines = [f"  {line}" for line in plain(text).splitlines()]
            lines += _with_carets(text_lines, width, ascii_only=ascii_only) if width else text_lines
        return "\n".join(lines)

    def compile_lines(self) -> list[str]:
        """Return a line about the functions that torch compiles again; empty if there are none."""
        again = [*map(printable, self.compiles_again)]
        return [f"compiles again: {some(again)}"] if again else []

    def warning_lines(self) -> list[str]:
        """Return a line for each warning about the new code."""
        return [f"warning: {printable(text)}" for text in self.warnings]

    def stale_lines(self) -> list[str]:
        """Return a line for each kind of old code that still runs, and then a line about how to end
        it; empty if none runs."""
        lines = [f"old code: {printable(text)}" for text in self.stale]
        if lines:
            lines.append('`sync_workspace(reload="respawn")`, or a restart of the run, ends it')
        return lines

    def audit_kept_lines(self) -> list[str]:
        """Return a line for each kind of code that stays old by design, such as a function that is
        running.
        """
        return [f"kept: {printable(text)}" for text in self.kept]

    def behind_lines(self) -> list[str]:
        """Return a line for each host that could not take part in a push that succeeded
        otherwise."""
        behind = [host for host in self.hosts if host.error and self.ok]
        return [f"left behind {printable(host.host)}: {plain(host.error)}" for host in behind]

    def kept_lines(self) -> list[str]:
        """Return a line for each file that was changed on a host and kept."""
        kept = ((host.host, printable(name)) for host in self.hosts for name in host.kept)
        return [f"changed on {host}, kept as {name}" for host, name in kept]


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def problem_lines(problems: Sequence[Problem]) -> list[str]:
    """Return a line for each problem. Of many, only the first get a line, beginning with paths that
    hosts keep; further lines count the rest."""
    in_order = sorted(problems, key=lambda problem: not problem.is_kept)
    lines = [problem.line() for problem in in_order[:_MAX_PROBLEMS]]
    rest = [problem.is_kept for problem in in_order[_MAX_PROBLEMS:]]
    for is_kept in (True, False):
        if num := rest.count(is_kept):
            lines.append(f"{_FATES[is_kept]} {num:,} more")
    return lines


def _with_carets(lines: list[str], width: int, *, ascii_only: bool) -> list[str]:
    """Cut long lines. A line with a caret below it is cut around the caret, so that the caret still
    points at its column."""
    for number, line in enumerate(lines[1:], 1):
        if line.strip() == "^" and "\t" not in line:
            mark = "..." if ascii_only else "…"
            above, at = clipped_around(lines[number - 1], num_cells(line) - 1, width, mark)
            lines[number - 1 : number + 1] = [above, " " * at + "^"]
    return lines


_ASCII = str.maketrans({"✓": "ok", "✗": "x", "→": "->", "×": "x", "…": "..."})


def _in_ascii(text: str) -> str:
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode()
