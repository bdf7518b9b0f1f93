"""Retrying: which refusals a watch need not wait for a save to try again, and when it does.

A disk that was full, a host that hung, an actor that was too busy to stand still: that passes, and
nobody tells. Code that was refused stays refused until somebody edits it.
"""

from __future__ import annotations

from monarch_sync import SyncReport

_FIRST_SECONDS = 2.0
_LONGEST_SECONDS = 30.0
_MAX_TAKEN_BACK = 3  # pushes that were shown already: each makes two generations


class Retrying:
    """Is told what came of each push, and says when it is time for another."""

    def __init__(self) -> None:
        self._pause = _FIRST_SECONDS
        self._due: float | None = None
        self._num_taken_back = 0

    @property
    def text(self) -> str:
        """What to tell of it."""
        return (
            f"this may pass without a save: trying again in {self._pause:g} s, and then again, at "
            f"least every {_LONGEST_SECONDS:g} s"
        )

    def pushed(self, report: SyncReport, now: float) -> bool:
        """Whether this is the first of the pushes that are to be tried again. ``now``: seconds, by
        any clock that runs on."""
        self._num_taken_back += report.was_taken_back
        if report.ok:
            self._num_taken_back = 0
        if not may_pass(report) or self._num_taken_back > _MAX_TAKEN_BACK:
            self._due, self._pause = None, _FIRST_SECONDS
            return False
        is_first = self._due is None
        self._pause = _FIRST_SECONDS if is_first else min(2 * self._pause, _LONGEST_SECONDS)
        self._due = now + self._pause
        return is_first

    def is_due(self, now: float) -> bool:
        """Whether it is time to try again."""
        return self._due is not None and now >= self._due


def may_pass(report: SyncReport) -> bool:
    """Whether the same push may come through later, or reach a host that was left behind."""
    if any(refusal.path or refusal.traceback for refusal in report.refusals):
        return False  # It is the code.
    return not report.ok or any(host.error for host in report.hosts)
