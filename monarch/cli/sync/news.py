"""News: which pushes of a watch anybody wants to hear of; one save may come as several events."""

from __future__ import annotations

from monarch_sync import SyncReport
from monarch_sync.report import Problem


class News:
    """Is told of each push, and tells the new from what was told already."""

    def __init__(self) -> None:
        self._told: tuple[int, str, list[str]] = 0, "", []
        self._left: set[str] = set()  # hosts that were left behind
        self._problems: set[Problem] = set()

    @property
    def is_unreadable(self) -> bool:
        """Whether something could not be read at the last push."""
        return any(problem.is_unreadable for problem in self._problems)

    def pushed(self, report: SyncReport) -> bool:
        """Whether it is news."""
        said, self._told = self._told, (report.generation, report.digest, report.errors)
        before, self._problems = self._problems, set(report.problems)
        if self._problems - before or any(p.is_unreadable for p in before - self._problems):
            return True
        left, self._left = self._left, {host.host for host in report.hosts if host.error}
        if left != self._left:
            return True
        # A mode or a link is in no list of files, and makes a generation.
        is_change = bool(report.changed_files) or said[0] != report.generation
        return said != self._told and (is_change or bool(report.errors))
