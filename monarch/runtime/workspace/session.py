"""A process's dealings with workspaces: it pushes them, and follows them itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from monarch.runtime.proc_agent import ProcAgent
from monarch.runtime.workspace.author import Author, Owner
from monarch.runtime.workspace.reload_agent import ReloadAgent, project_roots
from monarch.wire.address import ProcAddress
from monarch_sync.report import SyncReport
from monarch_sync.workspace import Workspace

__all__ = ["WorkspaceSession"]


class WorkspaceSession:
    """Make one a process, before the modules that it should follow are imported."""

    def __init__(self, agent: ProcAgent, roots: Sequence[str], label: str) -> None:
        self._agent = agent
        self.reload = ReloadAgent(agent, roots, label)
        self._authors: dict[Workspace, Author] = {}

    @classmethod
    def of_client(cls, agent: ProcAgent) -> WorkspaceSession:
        """For a client program: it follows the project folders on its own `sys.path`."""
        return cls(agent, project_roots(sys.path), f"client (pid {os.getpid()})")

    def push(
        self,
        hosts: Sequence[ProcAddress],
        workspace: Workspace,
        mode: str = "auto",
        owners: Sequence[Owner] | None = None,
        touched: Iterable[Path] | None = None,
    ) -> SyncReport:
        """Push ``workspace`` to ``hosts``. ``owners`` of the procs there: this process, unless
        given. Blocks; see ``Author.push``."""
        author = self._authors.get(workspace)
        if author is None:
            author = self._authors[workspace] = Author(self._agent.node, workspace)
        return author.push(hosts, [self.reload] if owners is None else owners, mode, touched)
