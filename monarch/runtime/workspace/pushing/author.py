"""The author of a workspace's pushes, again and again."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from monarch.errors import MonarchError
from monarch.runtime.node import Node
from monarch.runtime.workspace.code_switch.proposing import Owner, OwnerLost
from monarch.runtime.workspace.pushing.host_history import HostHistory
from monarch.runtime.workspace.pushing.memory import Memory
from monarch.runtime.workspace.pushing.rollback import roll_back
from monarch.runtime.workspace.pushing.workspace_push import WorkspacePush
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import ProcDown
from monarch_sync.report import SyncReport
from monarch_sync.watching.watch import Watcher
from monarch_sync.workspace import Workspace

_PATIENCE_SECONDS = 1.0


class Author:
    """Pushes one workspace, again and again; a later push sends only what has changed.

    ``watcher`` lives from the first push to `close`, so that the next push need not look at
    untouched files. It has no thread: the kernel keeps the events until they are read. A caller
    that iterates over it passes the paths to `push`.
    """

    def __init__(self, node: Node, workspace: Workspace) -> None:
        self._node = node
        self._memory = Memory(workspace)
        self._lock = threading.Lock()
        self._knows_all = False
        self.watcher = Watcher(workspace)
        node.peer_down.on_down.append(self._forget)

    def go_on_from(self, generation: int) -> None:
        """If another author's pushes have brought the hosts to ``generation``, and ours is lower,
        give the next push the number after it. The hosts are then asked for their states again.
        """
        if generation > self._memory.generation:
            # The other author has changed the hosts, and they are to be asked again.
            self._memory.generation = generation
            self._memory.views.clear()

    def _forget(self, uid: Uid, down: ProcDown) -> None:
        """Forget the state of a lost host: if it comes back, its state is unknown."""
        self._memory.views.pop(uid, None)

    def call(self, names: Mapping[Uid, str]) -> None:
        """Set names for hosts that have not reported their own yet."""
        self._memory.host_names = {**names, **self._memory.host_names}

    def name_of(self, host: ProcAddress) -> str:
        """Return the name of a host for reports."""
        return self._memory.host_names.get(host.uid, host.uid)

    def has(self, digest: str) -> bool:
        """Return whether the state with this digest is the state that this author has pushed
        last."""
        last = self._memory.last
        return last is not None and last.digest.hex() == digest

    def bring(self, host: ProcAddress) -> SyncReport:
        """Push the state of the last push again, to a host on which nothing runs.

        Raises ``MovedUnderfoot`` if files have changed here since that push.
        """
        with self._lock:
            return WorkspacePush(self._memory, self._node, [], "off").run([host], (), max_rescans=1)

    def push(
        self,
        hosts: Sequence[ProcAddress],
        owners: Sequence[Owner] | None,
        mode: str = "auto",
        touched: Iterable[Path] | None = None,
        *,
        best_effort: bool = False,
        silent: Mapping[Uid, str] | None = None,
        allow_empty: bool = False,
        local_roots: Sequence[str] = (),
    ) -> SyncReport:
        """Push the workspace to ``hosts``, and its code to the processes of ``owners``.

        ``owners`` None: the clients that the hosts name. With ``touched``, only these paths may
        have changed since the last push. Without it the watcher is asked, and if it is not certain,
        all files are looked at. ``local_roots`` are folders here that get the workspace, too.

        A refusal, or a lost or hanging host, becomes one of the report's ``errors``. With
        ``best_effort``, a lost or hanging host is left behind instead, and named in the report;
        ``silent`` hosts (reasons by uid) are then not even asked. Raises ``WorkspaceMissing``,
        ``WorkspaceEmptied`` without ``allow_empty``, and ``MonarchError`` for a lost owner.
        """
        with self._lock:
            if touched is None:
                touched = self.watcher.changes()
            if not self._knows_all:
                touched = None  # Files touched before a push that broke off may be unseen.
            self._knows_all = False
            attempt = WorkspacePush(
                self._memory,
                self._node,
                owners,
                mode,
                best_effort=best_effort,
                silent=silent,
                settle=self.watcher.settle,
                may_empty=allow_empty,
                local_roots=local_roots,
            )
            try:
                report = attempt.run(hosts, touched)
            finally:
                if attempt.ahead:
                    self._bring_back(attempt, hosts)
            self._knows_all = True
            return report

    def _bring_back(self, attempt: WorkspacePush, hosts: Sequence[ProcAddress]) -> None:
        """Undo the push for the owners that have switched, because another owner could not switch:
        push the state from before the push to them and their hosts.
        """
        memory, report = self._memory, attempt.report
        for owner in [owner for owner in attempt.owners if owner.uid in attempt.ahead]:
            owned = [host for host in hosts if attempt.owner_of(host.uid) == owner.uid]
            past = HostHistory(self._node, {str(host.uid): host for host in owned})
            try:
                back = roll_back(
                    past,
                    self._node,
                    memory.workspace,
                    attempt.base,
                    owned,
                    owners=[owner],
                    names=memory.host_names,
                )
            except OwnerLost:
                attempt.lost(owner.uid)
            except MonarchError as error:
                report.errors.append(f"a program runs the new code, and could not go back: {error}")
            else:
                report.errors += back.errors
                memory.generation = max(memory.generation, back.generation)
        memory.views.clear()

    def rest(self) -> None:
        """Release the watches until the next push, which looks at all files."""
        if self._lock.acquire(blocking=False):
            self.watcher.rest()
            self._lock.release()

    def close(self) -> None:
        """Release the watches for good. If a push is in progress and does not finish soon, they are
        not released.
        """
        if self._lock.acquire(timeout=_PATIENCE_SECONDS):
            self.watcher.close()
            self._lock.release()
