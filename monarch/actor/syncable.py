"""Meshes that a workspace can be pushed to: of hosts, procs and actors, and their slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from monarch.actor.host_warnings import HostWarning, WarningSubscription
from monarch.runtime import process
from monarch.wire.address import ProcAddress

if TYPE_CHECKING:
    from monarch.actor.pushing import PushFuture
    from monarch_sync import Workspace


class Syncable:
    """A mesh whose machines can get a workspace."""

    def sync_workspace(
        self,
        workspace: Workspace,
        conda: bool = False,
        auto_reload: bool = True,
        *,
        reload: str = "auto",
        best_effort: bool = False,
        allow_empty: bool = False,
    ) -> PushFuture:
        """Push ``workspace`` to the machines of this mesh, and its code into their live processes.

        The push starts at once: ``await`` it, or ``.get()`` its ``monarch_sync.SyncReport``. All
        procs that this program owns there switch between the same two messages, or none does. With
        ``best_effort`` hosts that cannot follow are left behind, and the report names them;
        programs that run on them refuse calls of the new generation until they have caught up.
        ``conda`` also installs the packages of the workspace's lock file that the machines lack,
        conda or not. ``reload`` is "auto", "patch", "respawn" or "off".

        A refusal is in the report (``ok``, ``errors``); ``raise_for_errors`` raises it. The future
        raises ``monarch_sync.WorkspaceMissing`` if a folder does not exist, and, unless
        ``allow_empty``, ``monarch_sync.WorkspaceEmptied`` if a folder is empty whose files machines
        have. Raises ``ValueError`` for another ``reload`` and for a workspace without folders,
        ``TypeError`` if it is no workspace.
        """
        # Imported when used: a program without a workspace need not pay for it.
        from monarch.actor.pushing import push

        mode = reload if auto_reload else "off"
        return push(self._sync_hosts(), workspace, mode, best_effort, conda, allow_empty)

    def on_warning(self, tell: Callable[[HostWarning], object]) -> WarningSubscription:
        """Call ``tell`` when a machine of this mesh will end soon, in time to save. Schedulers
        announce that before a time limit or a preemption, and when a pod is deleted. The calls
        come on a thread of its own, until you close the returned subscription.
        """
        return WarningSubscription(process.current().node, self._sync_hosts(), tell)

    def _sync_hosts(self) -> Sequence[ProcAddress]:
        """Return the agents of these machines."""
        raise NotImplementedError
