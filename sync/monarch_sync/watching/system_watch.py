"""System watch: saves as `watchfiles` reports them, where there is no inotify (on a Mac, say).

It may lose events silently: those of new folders, and when there are many at once. So its events
only make the reaction fast. After every burst, and from time to time, everything is looked at, so
no change is missed for good.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

from watchfiles import Change, watch

from monarch_sync.content.stamps import identity_of
from monarch_sync.watching.outer_rules import OuterRules
from monarch_sync.watching.watched_folders import is_never_taken
from monarch_sync.workspace import Workspace

_STEP_MS = 10  # after the last event of a save
_MAX_SETTLE_MS = 1000
_QUIET_MS = 300  # before the look at everything that follows a burst
_AUDIT_SHARE = 50  # the least time from one look to the next, in durations of a look


class SystemWatch:
    """The watch of one workspace, until one of its folders is replaced or deleted. Iterate over it:
    it yields sets of touched paths; an empty set asks for a look at everything.

    Raises ``OSError`` and ``RuntimeError`` if the system reports no events.
    """

    def __init__(self, workspace: Workspace, is_closed: Event, audit_seconds: float) -> None:
        self._is_closed = is_closed
        self._audit_seconds = audit_seconds
        self._roots = [str(folder.local) for folder in workspace.folders]
        self._first_identities = self._identities()
        self._workspace = workspace
        self._rules = self._read_rules()

    def __iter__(self) -> Iterator[set[Path]]:
        needs_audit, next_audit = True, 0.0  # The saves from before it had begun.
        for changes in watch(
            *self._roots,
            watch_filter=self._is_ours,
            step=_STEP_MS,
            debounce=_MAX_SETTLE_MS,
            rust_timeout=_QUIET_MS,
            yield_on_timeout=True,
            stop_event=self._is_closed,
            raise_interrupt=False,
            ignore_permission_denied=True,
        ):
            if self._is_closed.is_set() or self._is_another(changes):
                return
            has_new_rules = any(rules.have_changed() for rules in self._rules)
            if has_new_rules:
                self._rules = self._read_rules()
            if changes and not has_new_rules:
                needs_audit = True
                yield {Path(path) for _, path in changes}
            elif needs_audit or has_new_rules or time.monotonic() > next_audit:
                needs_audit = False
                started = time.monotonic()
                yield set()
                cost = time.monotonic() - started
                next_audit = started + max(self._audit_seconds, _AUDIT_SHARE * cost)

    def _is_ours(self, change: Change, path: str) -> bool:
        """Return whether a changed path may belong to the workspace. It does not if
        ``is_never_taken`` holds for a name in it below the workspace's folder; ignore rules are not
        consulted.
        """
        root = max((r for r in self._roots if path.startswith(f"{r}/")), key=len, default=path)
        return not any(map(is_never_taken, path[len(root) :].split("/")))

    def _is_another(self, changes: set[tuple[Change, str]]) -> bool:
        """Return whether a folder of the workspace was deleted or replaced.

        It was if ``changes`` has its deletion, or its inode is another one. The inode alone would
        not show it: a new folder may have the inode number of the old folder.
        """
        deleted = {path for change, path in changes if change is Change.deleted}
        return not deleted.isdisjoint(self._roots) or self._identities() != self._first_identities

    def _read_rules(self) -> list[OuterRules]:
        patterns = self._workspace.ignore
        followed = [folder.local for folder in self._workspace.folders if folder.follows_git]
        return [OuterRules(folder, patterns) for folder in followed]

    def _identities(self) -> list[tuple[int, int] | None]:
        return [identity_of(root, follow_links=True) for root in self._roots]
