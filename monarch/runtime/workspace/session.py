"""A process's use of workspaces: it pushes them, and follows them itself."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.runtime.workspace.code_switch.driver import CodeSwitch
from monarch.runtime.workspace.code_switch.remote_owner import RemoteOwner
from monarch.runtime.workspace.local_reload import LocalReload
from monarch.runtime.workspace.project_roots import project_roots
from monarch.wire.address import ProcAddress, Uid

if TYPE_CHECKING:
    from monarch.runtime.workspace.code_switch.proposing import Owner
    from monarch.runtime.workspace.packages.surroundings import Surroundings
    from monarch.runtime.workspace.pushing.author import Author
    from monarch.runtime.workspace.reload_plan import ReloadPlan
    from monarch_sync.report import SyncReport
    from monarch_sync.watching.watch import Watcher
    from monarch_sync.workspace import Workspace


_MAX_AWAKE = 4  # workspaces that are watched between pushes

_sessions: WeakKeyDictionary[ProcAgent, WorkspaceSession] = WeakKeyDictionary()


class WorkspaceSession:
    """The workspaces that a process pushes and follows. Make one for each process, before the
    modules that it should follow are imported."""

    def __init__(self, agent: ProcAgent, roots: Sequence[str], label: str) -> None:
        self._agent = agent
        self.reload = CodeSwitch(agent, LocalReload(agent, roots, label), self._came_to)
        self._authors: dict[Workspace, Author] = {}
        self._surroundings: dict[Workspace, Surroundings] = {}
        self._lock = threading.Lock()
        agent.at_close.append(self.close)
        if agent.is_root:
            # Few processes ever push, or own hosts.
            from monarch.runtime.workspace.pushing.late_hosts import LateHosts

            LateHosts(agent, lambda: list(self._authors.values()))

    def push(
        self,
        hosts: Sequence[ProcAddress],
        workspace: Workspace,
        mode: str = "auto",
        owners: Sequence[Owner] | None = None,
        touched: Iterable[Path] | None = None,
        *,
        is_visit: bool = False,
        best_effort: bool = False,
        silent: Mapping[Uid, str] | None = None,
        names: Mapping[Uid, str] | None = None,
        env: bool = False,
        allow_empty: bool = False,
        pip_arguments: Sequence[str] = (),
    ) -> SyncReport:
        """Push ``workspace`` to ``hosts``; blocks. See ``Author.push``.

        ``owners`` of the procs there are by default the client of this program or, in a visit, the
        clients that the hosts name. ``names`` are for hosts that may not report their own names.

        With ``env``, first get the packages that the workspace's lock file lists and hosts lack.
        They are pushed now and with every later push. Raises ``EnvironmentFailed`` if they cannot
        be had; then nothing has changed.
        """
        surroundings, notes = self._surroundings_of(workspace)
        if env:
            from monarch.runtime.workspace.packages.environment import ask_pythons

            asked = [host for host in hosts if host.uid not in (silent or {})]
            pythons = ask_pythons(self._agent.node, asked, names or {})
            notes.append(surroundings.install(pythons, pip_arguments))
        author = self._author(surroundings.whole())
        # Another workspace's pushes count too: generations never go back.
        author.go_on_from(self._agent.generation)
        author.call(names or {})
        effort: Any = {"best_effort": best_effort, "silent": silent, "allow_empty": allow_empty}
        if any(host.uid == self._agent.node.uid for host in hosts):
            effort["local_roots"] = self._agent.given_workspaces()
        if owners is None and not is_visit and not self._agent.is_root:
            # The client owns all programs there, and this process as well.
            owners = [RemoteOwner(self._agent.node, self._agent.root)]
        with self.reload.pushing():
            if owners is None and not is_visit:
                with self.reload.alone:
                    report = author.push(hosts, [self.reload], mode, touched, **effort)
            else:
                report = author.push(hosts, owners, mode, touched, **effort)
        if report.ok:
            failed = {host.host for host in report.hosts if host.error}
            reached = [h.uid for h in hosts if author.name_of(h) not in failed]
            self._agent.workspaces.pushed(reached, report.generation, report.digest)
            notes += surroundings.changes()
        report.notes += notes
        return report

    def roll_back(
        self, hosts: Sequence[ProcAddress], workspace: Workspace, generation: int
    ) -> SyncReport:
        """Roll ``hosts``, and this program's processes there, back to a generation.

        See ``rollback.roll_back`` for its errors. Blocks, also until a push in progress has
        finished.
        """
        from monarch.runtime.workspace.pushing.host_history import HostHistory
        from monarch.runtime.workspace.pushing.rollback import roll_back

        whole = self._surroundings_of(workspace)[0].whole()
        past = HostHistory(self._agent.node, {str(host.uid): host for host in hosts})
        with self.reload.pushing(), self.reload.alone:
            return roll_back(past, self._agent.node, whole, generation, hosts, owners=[self.reload])

    def _came_to(self, plan: ReloadPlan) -> None:
        """Record that hosts, and processes of this program, have come to the state of ``plan``.
        Another process may have pushed it.
        """
        self._agent.workspaces.pushed(plan.covers, plan.generation, plan.digest)

    def watcher(self, workspace: Workspace) -> Watcher:
        """Return a new watcher of all folders that are pushed with a workspace.

        A caller that iterates over it passes the paths as ``touched`` to each push. The session's
        own watches of the workspace are released, because the new watcher replaces them.
        """
        from monarch_sync.watching.watch import Watcher

        whole = self._surroundings_of(workspace)[0].whole()
        self._author(whole).rest()
        return Watcher(whole)

    def close(self) -> None:
        """Stop watching workspaces and remembering imports."""
        self.reload.audits.close()
        self.reload.local_reload.close()
        with self._lock:
            for author in self._authors.values():
                author.close()

    def _surroundings_of(self, workspace: Workspace) -> tuple[Surroundings, list[str]]:
        """Return what is pushed along with a workspace, and lines to print. The lines are empty
        except at the first call for that workspace.
        """
        from monarch.runtime.workspace.packages.surroundings import Surroundings

        with self._lock:
            surroundings = self._surroundings.get(workspace)
            if surroundings is not None:
                return surroundings, []
            new = self._surroundings[workspace] = Surroundings(workspace)
            return new, new.arrivals()

    def _author(self, workspace: Workspace) -> Author:
        # Few processes ever push.
        from monarch.runtime.workspace.pushing.author import Author

        with self._lock:
            author = self._authors.pop(workspace, None) or Author(self._agent.node, workspace)
            self._authors[workspace] = author
            # The system has few event queues, which other programs need too.
            for idle in list(self._authors.values())[:-_MAX_AWAKE]:
                idle.rest()
            return author


def open_session(agent: ProcAgent, roots: Sequence[str], label: str) -> WorkspaceSession:
    """Return the session of a process that starts now, before it imports any module of a
    workspace."""
    session = _sessions[agent] = WorkspaceSession(agent, roots, label)
    return session


def session_of(agent: ProcAgent) -> WorkspaceSession:
    """Return the session of this process. A client gets its session at the first call; the session
    follows the project folders on `sys.path`.
    """
    session = _sessions.get(agent)
    if session is None:
        session = open_session(agent, project_roots(sys.path), f"client (pid {os.getpid()})")
    return session
