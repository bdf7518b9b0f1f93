"""Decides after each push of a watch whether it is reported, and whether it is retried.

One save may cause several events: only one of these pushes is reported. A refusal that may pass by
itself is retried without a save: a disk that was full, a host that hung, an actor that was too
busy. Code that was refused stays refused until it is edited.
"""

from __future__ import annotations

from monarch_sync import SyncReport
from monarch_sync.report import Problem

_LONGEST_SECONDS = 30.0
_MAX_TAKEN_BACK = 3  # pushes that were shown already: each makes two generations


class PushNews:
    """Compares the report of each push with that of the last one, to say only what is new."""

    def __init__(self) -> None:
        #: Generation, digest and errors of the last push.
        self._last: tuple[int, str, list[str]] = 0, "", []
        #: The message after a push that came through, if the one before was refused; else "".
        self.fixed = ""
        #: Hosts that the last push left behind.
        self._behind: set[str] = set()
        self._problems: set[Problem] = set()

    @property
    def is_unreadable(self) -> bool:
        """Whether some file could not be read at the last push."""
        return any(problem.is_unreadable for problem in self._problems)

    def pushed(self, report: SyncReport) -> bool:
        """Record a push's report; return whether it says something that the last one did not."""
        last, self._last = self._last, (report.generation, report.digest, report.errors)
        self.fixed = ""
        if last[2] and report.ok:
            is_back = not report.is_change
            self.fixed = f"as gen {report.generation}: nothing to push" if is_back else "fixed"
        before, self._problems = self._problems, set(report.problems)
        if self._problems - before or any(p.is_unreadable for p in before - self._problems):
            return True
        behind, self._behind = self._behind, {host.host for host in report.hosts if host.error}
        if behind != self._behind:
            return True
        # A mode or a link is in no list of files, and makes a generation.
        is_change = bool(report.changed_files) or last[0] != report.generation
        return last != self._last and (is_change or bool(report.errors))


class Retrying:
    """Decides when a refused push is retried."""

    first_seconds = 2.0

    def __init__(self) -> None:
        self._pause = self.first_seconds
        self._due: float | None = None
        self._num_taken_back = 0

    @property
    def text(self) -> str:
        """Return the line that announces the next try."""
        return (
            f"this may pass without a save: trying again in {self._pause:g} s, and then again, at "
            f"least every {_LONGEST_SECONDS:g} s"
        )

    def pushed(self, report: SyncReport, now: float) -> bool:
        """Record a push; return whether pushes must be retried from now on, and were not so far.

        ``now``: seconds, by any clock that never stops.
        """
        self._num_taken_back += report.was_taken_back
        if report.ok:
            self._num_taken_back = 0
        if not may_pass(report) or self._num_taken_back > _MAX_TAKEN_BACK:
            self._due, self._pause = None, self.first_seconds
            return False
        is_first = self._due is None
        self._pause = self.first_seconds if is_first else min(2 * self._pause, _LONGEST_SECONDS)
        self._due = now + self._pause
        return is_first

    def is_due(self, now: float) -> bool:
        """Whether it is time to try again."""
        return self._due is not None and now >= self._due


def may_pass(report: SyncReport) -> bool:
    """Whether the push of ``report`` may succeed, or reach more hosts, if it is made again."""
    if any(refusal.path or refusal.traceback for refusal in report.refusals):
        return False  # It is the code.
    return not report.ok or any(host.error for host in report.hosts)
