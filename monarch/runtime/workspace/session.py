"""A process's dealings with workspaces: it pushes them, and follows them itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from monarch.runtime.proc_agent import ProcAgent
from monarch.runtime.workspace.reload_agent import ReloadAgent, project_roots
from monarch.runtime.workspace.turnover import Turnover
from monarch.runtime.workspace.turnover_orders import TurnoverOrders
from monarch.wire.address import ProcAddress

if TYPE_CHECKING:
    from monarch.runtime.workspace.author import Author
    from monarch.runtime.workspace.owner import Owner
    from monarch.runtime.workspace.reload_plan import ReloadPlan
    from monarch_sync.report import SyncReport
    from monarch_sync.workspace import Workspace

__all__ = ["WorkspaceSession", "open_session", "session_of"]

_sessions: WeakKeyDictionary[ProcAgent, WorkspaceSession] = WeakKeyDictionary()


class WorkspaceSession:
    """Make one a process, before the modules that it should follow are imported."""

    def __init__(self, agent: ProcAgent, roots: Sequence[str], label: str) -> None:
        self._agent = agent
        self.reload = Turnover(agent, ReloadAgent(agent, roots, label))
        self.reload.on_over = self._came_to
        TurnoverOrders(agent, self.reload)
        self._authors: dict[Workspace, Author] = {}
        if agent.is_root:
            # Few processes ever push, or own hosts.
            from monarch.runtime.workspace.late_hosts import LateHosts

            LateHosts(agent, lambda: list(self._authors.values()))

    def push(
        self,
        hosts: Sequence[ProcAddress],
        workspace: Workspace,
        mode: str = "auto",
        owners: Sequence[Owner] | None = None,
        touched: Iterable[Path] | None = None,
        *,
        best_effort: bool = False,
    ) -> SyncReport:
        """Push ``workspace`` to ``hosts``. ``owners`` of the procs there: this process, unless
        given. Blocks; see ``Author.push``."""
        # Few processes ever push.
        from monarch.runtime.workspace.author import Author

        author = self._authors.get(workspace)
        if author is None:
            author = self._authors[workspace] = Author(self._agent.node, workspace)
        # Another workspace's pushes count too: generations never go back.
        author.go_on_from(self._agent.generation)
        if owners is None:
            owners = [self.reload]
        report = author.push(hosts, owners, mode, touched, best_effort=best_effort)
        if report.ok:
            left = {host.host for host in report.hosts if host.error}
            reached = [h.uid for h in hosts if author.name_of(h) not in left]
            self._agent.workspaces.pushed(reached, report.generation, report.digest)
        return report

    def _came_to(self, plan: ReloadPlan) -> None:
        """Somebody, maybe elsewhere, has brought hosts and our processes to a state."""
        self._agent.workspaces.pushed(plan.covers, plan.generation, plan.digest)


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
