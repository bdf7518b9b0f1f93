"""Who pushes a workspace, again and again."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from monarch.runtime.node import Node
from monarch.runtime.workspace.attempt import Attempt
from monarch.runtime.workspace.memory import Memory
from monarch.runtime.workspace.owner import Owner
from monarch.wire.address import ProcAddress, Uid
from monarch_sync.report import SyncReport
from monarch_sync.workspace import Workspace

__all__ = ["Author"]


class Author:
    """Pushes one workspace, again and again; later pushes cost what changed."""

    def __init__(self, node: Node, workspace: Workspace) -> None:
        self._node = node
        self._memory = Memory(workspace)
        self._lock = threading.Lock()

    def go_on_from(self, generation: int) -> None:
        """Count on from here, if somebody else has counted further than we."""
        if generation > self._memory.generation:
            # Who did has changed the hosts, and they are to be asked again.
            self._memory.generation = generation
            self._memory.views.clear()

    def heard(self, states: Mapping[Uid, str]) -> None:
        """Take in what hosts say they have, by the digest: another author may have been there."""
        for uid, digest in states.items():
            view = self._memory.views.get(uid)
            known = view.manifest if view is not None else None
            if known is not None and known.digest.hex() != digest:
                del self._memory.views[uid]

    def push(
        self,
        hosts: Sequence[ProcAddress],
        owners: Sequence[Owner],
        mode: str = "auto",
        touched: Iterable[Path] | None = None,
        *,
        best_effort: bool = False,
    ) -> SyncReport:
        """Bring the workspace to ``hosts``, and its code into the processes of ``owners``.

        ``touched`` says that only these paths may have changed. A refusal comes back in the
        report's ``errors``, a host that is lost or hangs too; with ``best_effort`` such a host is
        left behind, and named in the report. Raises ``WorkspaceMissing``, and ``MonarchError``
        for a lost owner.
        """
        with self._lock:
            attempt = Attempt(self._memory, self._node, owners, mode, best_effort=best_effort)
            return attempt.run(hosts, touched)
