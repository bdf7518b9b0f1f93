"""A process's dealings with workspaces: it pushes them, and follows them itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from monarch.runtime.proc_agent import ProcAgent
from monarch.runtime.workspace.reload_agent import ReloadAgent, project_roots
from monarch.runtime.workspace.turnover import Turnover
from monarch.wire.address import ProcAddress, Uid

if TYPE_CHECKING:
    from monarch.runtime.workspace.author import Author
    from monarch.runtime.workspace.owner import Owner
    from monarch_sync.report import SyncReport
    from monarch_sync.workspace import Workspace

__all__ = ["WorkspaceSession", "open_session", "session_of"]

_sessions: WeakKeyDictionary[ProcAgent, WorkspaceSession] = WeakKeyDictionary()


class WorkspaceSession:
    """Make one a process, before the modules that it should follow are imported."""

    def __init__(self, agent: ProcAgent, roots: Sequence[str], label: str) -> None:
        self._agent = agent
        self.reload = Turnover(agent, ReloadAgent(agent, roots, label))
        self._authors: dict[Workspace, Author] = {}

    def push(
        self,
        hosts: Sequence[ProcAddress],
        workspace: Workspace,
        mode: str = "auto",
        owners: Sequence[Owner] | None = None,
        touched: Iterable[Path] | None = None,
        heard: Mapping[Uid, str] | None = None,
        *,
        best_effort: bool = False,
    ) -> SyncReport:
        """Push ``workspace`` to ``hosts``. ``owners`` of the procs there: this process, unless
        given. ``heard``: what hosts said just now that they have. Blocks; see ``Author.push``."""
        # Few processes ever push.
        from monarch.runtime.workspace.author import Author

        author = self._authors.get(workspace)
        if author is None:
            author = self._authors[workspace] = Author(self._agent.node, workspace)
        # Another workspace's pushes count too: generations never go back.
        author.go_on_from(self._agent.generation)
        author.heard(heard or {})
        if owners is None:
            owners = [self.reload]
        return author.push(hosts, owners, mode, touched, best_effort=best_effort)


def open_session(agent: ProcAgent, roots: Sequence[str], label: str) -> WorkspaceSession:
    """The session of a process that begins now, before it imports anything of a workspace."""
    session = _sessions[agent] = WorkspaceSession(agent, roots, label)
    return session


def session_of(agent: ProcAgent) -> WorkspaceSession:
    """The session of this process; a client gets one that follows the project folders on its
    `sys.path` when it first needs one."""
    known = _sessions.get(agent)
    if known is None:
        known = open_session(agent, project_roots(sys.path), f"client (pid {os.getpid()})")
    return known
