"""The output of ``monarch sync``: lines for people, or objects for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, Protocol

from monarch.cli.sync.progress_bar import ProgressBar, ProgressLines, Source
from monarch.cli.terminal.interrupts import left_at_once
from monarch.cli.terminal.terminal import Terminal
from monarch.cli.terminal.volume import is_quiet, is_verbose
from monarch.config_file import ConfigError
from monarch.errors import MonarchError
from monarch_sync import SyncError, SyncReport
from monarch_sync.progress import Progress, followed_by
from monarch_sync.report import problem_lines
from monarch_sync.words import printable, some


class Output(Protocol):
    """Prints the events of a ``monarch sync`` command."""

    def pushed(self, report: SyncReport) -> None:
        """Report a push that has ended, refused or not. Its audit may still be under way."""

    def audited(self, report: SyncReport) -> None:
        """Report what the audit after the push ``report`` has found, if that is not said yet."""

    def failed(self, error: str) -> None:
        """Report that a push could not be made; nothing changed."""

    def note(self, event: str, text: str, **data: Any) -> None:
        """Report another event to a person; ``event`` and ``data`` are for programs."""

    def good(self, event: str, text: str, **data: Any) -> None:
        """Like `note`, for something that was wrong and is right again."""

    def alarm(self, event: str, text: str, **data: Any) -> None:
        """Like `note`, for something that a person should act on."""

    def busy(self, source: Source, *, at_once: bool = False) -> AbstractContextManager[object]:
        """Return a context that shows the progress of a push, if it takes long.

        With ``at_once`` a terminal shows it from the beginning.
        """


class Lines:
    """Prints one line for each push; more if it was refused or with the verbose option, and none
    for a good push with the quiet option.
    """

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._reported: list[str] = []
        self._kept: list[str] = []  # what the last audit found to be kept
        self._unread: set[str] = set()  # paths that hosts had otherwise, as they could not be read

    def pushed(self, report: SyncReport) -> None:
        terminal = self._terminal
        form = {"width": terminal.width, "ascii_only": terminal.ascii_only}
        first, *details = report.table(**form).splitlines()  # type: ignore[arg-type]
        if not (report.ok and is_quiet()):
            terminal.line(first, None if report.ok else "red")
        if not report.ok:
            for line in details:
                terminal.prose(line)
            return
        if is_verbose():
            for line in details:
                terminal.line(line)
            return
        for line in report.compile_lines():
            terminal.prose(f"  {line}")
        # News that should not be overlooked after a good push; a state that may last is reported
        # once.
        reported = self._reported
        self._reported = [*problem_lines(report.problems), *report.notes]
        new_lines = [
            *report.warning_lines(),
            *report.behind_lines(),
            *report.kept_lines(),
            *self._followed(report),
        ]
        for text in (*new_lines, *(text for text in self._reported if text not in reported)):
            for line in text.splitlines():
                terminal.prose(f"  {line}", "yellow")

    def audited(self, report: SyncReport) -> None:
        kept, self._kept = self._kept, report.audit_kept_lines()
        lines = [*report.stale_lines(), *(line for line in self._kept if line not in kept)]
        if report.stale:
            self._terminal.line(f"! gen {report.generation}  runs old code, too", "yellow")
        for line in lines:
            self._terminal.prose(f"  {line}", "yellow")

    def _followed(self, report: SyncReport) -> Iterator[str]:
        """Yield a line about files that were unreadable at the last push, and now are readable."""
        unread_before = self._unread
        self._unread = {problem.path for problem in report.problems if problem.is_unreadable}
        if readable := sorted(unread_before - self._unread):
            yield f"hosts have {some([*map(printable, readable)])} as it is here again"

    def failed(self, error: str) -> None:
        mark = "x" if self._terminal.ascii_only else "✗"
        self._terminal.prose(f"{mark} {error}", "red")

    def note(self, event: str, text: str, **data: Any) -> None:
        if not is_quiet():
            self._terminal.prose(text, dim=True)

    def good(self, event: str, text: str, **data: Any) -> None:
        if not is_quiet():
            self._terminal.prose(f"{'+' if self._terminal.ascii_only else '✓'} {text}", "green")

    def alarm(self, event: str, text: str, **data: Any) -> None:
        mark = "x" if self._terminal.ascii_only else "✗"
        first, *details = text.splitlines()
        self._terminal.prose(f"{mark} {first}", "red")
        for line in details:
            self._terminal.prose(f"  {line}", "red")

    @contextmanager
    def busy(self, source: Source, *, at_once: bool = False) -> Iterator[None]:
        if is_quiet():
            yield
            return
        if not self._terminal.is_live:
            with closing(ProgressLines(source)):
                yield
            return
        with closing(ProgressBar(self._terminal, source, at_once=at_once)):
            yield


class JsonLines:
    """Prints an object on each line, with ``schema`` and ``event``; see docs/sync.md."""

    SCHEMA = 1

    def say(self, event: str, data: dict[str, Any]) -> None:
        print(json.dumps({"schema": self.SCHEMA, "event": event, **data}), flush=True)

    def pushed(self, report: SyncReport) -> None:
        report.wait_for_audit()  # Its findings are in the same object.
        self.say("push", report.to_dict())

    def audited(self, report: SyncReport) -> None:
        pass

    def failed(self, error: str) -> None:
        self.say("error", {"ok": False, "message": error})

    def note(self, event: str, text: str, **data: Any) -> None:
        self.say(event, {"message": text, **data})

    def good(self, event: str, text: str, **data: Any) -> None:
        self.say(event, {"ok": True, "message": text, **data})

    def alarm(self, event: str, text: str, **data: Any) -> None:
        self.say(event, {"ok": False, "message": text, **data})

    @contextmanager
    def busy(self, source: Source, *, at_once: bool = False) -> Iterator[None]:
        with closing(ProgressLines(source)):  # on standard error: the objects stay alone
            yield


@contextmanager
def telling_progress(output: Output) -> Iterator[Progress]:
    """Within, show the progress of a look at the workspace; Ctrl-C ends it at once."""
    progress = Progress(step="look")
    with left_at_once(), followed_by(progress), output.busy(lambda: (progress, 0), at_once=True):
        yield progress


def tell_push(output: Output, report: SyncReport) -> None:
    """Report a push at once, and what its audit finds when that is finished."""
    output.pushed(report)
    if report.ok and report.wait_for_audit():
        output.audited(report)


def listed(names: Sequence[object]) -> str:
    """Return names in one line, separated by commas.

    Control characters in them are escaped, because the names may be another person's choice.
    """
    return ", ".join(printable(str(name)) for name in names)


@contextmanager
def errors(*, is_json: bool) -> Iterator[None]:
    """Within, with ``is_json``, report our errors as JSON lines and end the command.

    It exits with 2 for a ``ConfigError``, else with 1. Without ``is_json`` errors are raised.
    """
    try:
        yield
    except (MonarchError, SyncError, ConfigError) as error:
        if not is_json:
            raise
        JsonLines().failed(str(error))
        sys.exit(2 if isinstance(error, ConfigError) else 1)


def tell(lines: Iterable[str]) -> None:
    """Print lines for people."""
    terminal = Terminal()
    for line in lines:
        terminal.prose(line)
