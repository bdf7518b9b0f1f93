"""The errors of a reload that changed nothing; each says why."""

from __future__ import annotations

import copy
import linecache
import traceback as traceback_module
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

from monarch_reload.report import ModuleVerdict, listed

Phase = Literal["compile", "run", "commit"]


class ReloadError(Exception):
    """The new code was refused; the process still runs the old code, unchanged."""

    def __init__(
        self,
        message: str,
        *,
        phase: Phase,
        path: str | None = None,
        line: int | None = None,
        column: int | None = None,
        text: str | None = None,
        traceback: str = "",
        errors: Sequence[ReloadError] = (),
        verdicts: Sequence[ModuleVerdict] = (),
    ) -> None:
        super().__init__(message)
        #: What is wrong, without the place.
        self.message = message
        #: The step that failed: compiling, the trial run, or the commit.
        self.phase: Phase = phase
        #: The file and the line of the error, None if they are not known. Lines begin at 1.
        self.path = path
        self.line = line
        #: Where a syntax error is in the line, beginning at 1.
        self.column = column
        #: The source line.
        self.text = text
        #: The traceback as text, without frames of the reloader.
        self.traceback = traceback
        #: The error of each file, if several files were refused.
        self.errors = tuple(errors)
        #: The modules that can change only in a new process, if that is the reason.
        self.verdicts = tuple(verdicts)

    @classmethod
    def of_syntax(cls, error: Exception, path: str, source: bytes = b"") -> ReloadError:
        """Make the error from an error of `compile`: SyntaxError, or a null byte, or too deep a
        nesting.

        The line is taken from `source`: `compile` may have read it from the file on disk, which
        need not have this text yet.
        """
        if not isinstance(error, SyntaxError):
            return cls(f"{type(error).__name__}: {error}", phase="compile", path=path)
        return cls(
            f"{type(error).__name__}: {error.msg}",
            phase="compile",
            path=path,
            line=error.lineno,
            column=error.offset,
            text=_line(path, error.lineno, {path: source}) or (error.text or "").rstrip("\n"),
            traceback="".join(traceback_module.format_exception_only(type(error), error)),
        )

    @classmethod
    def of_exception(
        cls,
        error: BaseException,
        phase: Phase,
        path: str | None = None,
        sources: Mapping[str, bytes] | None = None,
    ) -> ReloadError:
        """Make the error from an exception of new code. It names the file and line of the deepest
        frame in ``path``, or of the deepest frame of all if none is in ``path``.

        `sources` are the texts being tried, by path: the files on disk may not have them yet.
        """
        below = _without_reloader(error.__traceback__)
        frames = traceback_module.extract_tb(below)
        own_frames = [frame for frame in frames if frame.filename == path]
        origin = own_frames[-1] if own_frames else frames[-1] if frames else None
        filename = origin.filename if origin else path
        line = origin.lineno if origin else None
        return cls(
            f"{type(error).__name__}: {error}",
            phase=phase,
            path=filename,
            line=line,
            text=_line(filename, line, sources or {}),
            traceback="".join(traceback_module.format_exception(type(error), error, below)),
        )

    @classmethod
    def of_many(cls, errors: Sequence[ReloadError]) -> ReloadError:
        """Return one error for all of them, at the place of the first error."""
        if len(errors) == 1:
            return errors[0]
        first = copy.copy(errors[0])
        first.traceback = "\n".join(error.traceback for error in errors)
        first.errors = tuple(errors)
        return first

    def __str__(self) -> str:
        places = self.errors or (self,)
        return "\n".join([*(error._place() for error in places), "Nothing changed."])

    def _place(self) -> str:
        lines = []
        if self.path is not None:
            lines.append(self.path if self.line is None else f"{self.path}:{self.line}")
        if self.text:
            stripped = self.text.lstrip()
            lines.append(f"    {stripped}")
            if self.column:
                caret = max(self.column - 1 - (len(self.text) - len(stripped)), 0)
                lines.append("    " + " " * caret + "^")
        lines.append(self.message)
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: value for name, value in self.__dict__.items() if name != "message"}
        return _rebuilt, (type(self), self.message, fields)


class NeedsRespawn(ReloadError):
    """The new code is fine, but a running process cannot take it; restart to run it."""

    @classmethod
    def of_verdicts(cls, verdicts: Sequence[ModuleVerdict]) -> NeedsRespawn:
        """Make the error from the verdicts that ask for a new process; there is at least one."""
        by_reason: dict[str, list[str]] = {}
        for verdict in verdicts:
            by_reason.setdefault(verdict.reason, []).append(verdict.module)
        reasons = (
            f"{listed(modules)} cannot be patched in place: {why}"
            for why, modules in by_reason.items()
        )
        return cls("\n".join(reasons), phase="run", path=verdicts[0].path, verdicts=verdicts)


def files_of(error: BaseException) -> set[str]:
    """Return the files in an error's traceback, and the file that a ReloadError names."""
    files = {frame.filename for frame in traceback_module.extract_tb(error.__traceback__)}
    if isinstance(error, ReloadError) and error.path is not None:
        files.add(error.path)
    return files


def _rebuilt(cls: type[ReloadError], message: str, fields: dict[str, Any]) -> ReloadError:
    return cls(message, **{k: v for k, v in fields.items() if not k.startswith("__")})


def _without_reloader(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the reloader's own frames at its top."""
    while (
        traceback is not None
        and traceback.tb_next is not None
        and traceback.tb_frame.f_globals.get("__name__", "").startswith(__package__ or "")
    ):
        traceback = traceback.tb_next
    return traceback


def line_of(text: bytes, number: int) -> str | None:
    """Return a line of a source by its number, which begins at 1; None if there is no such line."""
    lines = text.decode("utf-8", "replace").splitlines()
    return lines[number - 1] if 0 < number <= len(lines) else None


def _line(path: str | None, line: int | None, sources: Mapping[str, bytes]) -> str | None:
    if path is None or line is None:
        return None
    if path in sources:
        return line_of(sources[path], line)
    return linecache.getline(path, line).rstrip("\n") or None
