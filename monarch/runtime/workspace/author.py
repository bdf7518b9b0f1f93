"""Who pushes a workspace, again and again."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from monarch.runtime.node import Node
from monarch.runtime.workspace.attempt import Attempt, Memory, Owner
from monarch.wire.address import ProcAddress
from monarch_sync.report import SyncReport
from monarch_sync.watch import Watcher
from monarch_sync.workspace import Workspace

__all__ = ["Author"]

_PATIENCE_SECONDS = 1.0


class Author:
    """Pushes one workspace, again and again; later pushes cost what changed.

    ``watcher`` lives from the first push to `close`, so that the next one need not look at
    files that nobody touched. It has no thread: the kernel keeps the events until they are asked
    for. Who iterates over it gives what it says to `push`.
    """

    def __init__(self, node: Node, workspace: Workspace) -> None:
        self._node = node
        self._memory = Memory(workspace)
        self._lock = threading.Lock()
        self._knows_all = False
        self.watcher = Watcher(workspace)

    def go_on_from(self, generation: int) -> None:
        """Count on from here, if somebody else has counted further than we."""
        self._memory.generation = max(self._memory.generation, generation)

    def push(
        self,
        hosts: Sequence[ProcAddress],
        owners: Sequence[Owner],
        mode: str = "auto",
        touched: Iterable[Path] | None = None,
    ) -> SyncReport:
        """Bring the workspace to ``hosts``, and its code into the processes of ``owners``.

        ``touched`` says that only these paths may have changed; otherwise the watcher is asked,
        and everything is looked at where it cannot vouch. A refusal comes back in the report's
        ``errors``; raises ``WorkspaceMissing``, and ``MonarchError`` for a lost host.
        """
        with self._lock:
            if touched is None:
                touched = self.watcher.changes()
            if not self._knows_all:
                touched = None  # What was touched before a push that broke off may be unseen.
            self._knows_all = False
            report = Attempt(self._memory, self._node, owners, mode).run(hosts, touched)
            self._knows_all = True
            return report

    def rest(self) -> None:
        """Give the watches back until the next push, which looks at everything."""
        if self._lock.acquire(blocking=False):
            self.watcher.rest()
            self._lock.release()

    def close(self) -> None:
        """Give the watches back for good. A push that is under way keeps them."""
        if self._lock.acquire(timeout=_PATIENCE_SECONDS):
            self.watcher.close()
            self._lock.release()
