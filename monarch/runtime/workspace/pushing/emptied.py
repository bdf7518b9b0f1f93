"""A folder that seems to have become empty: whether a push may empty it on the hosts, too."""

from __future__ import annotations

from collections.abc import Sequence

from monarch.runtime.workspace.pushing.fleet import Fleet
from monarch.runtime.workspace.pushing.host_states import host_states
from monarch.runtime.workspace.pushing.local_replicas import LocalReplicas
from monarch.runtime.workspace.pushing.memory import Memory
from monarch.wire.address import ProcAddress
from monarch_sync.scanning.emptied import bare_folders, refuse_emptied
from monarch_sync.scanning.scanner import Scan

__all__ = ["check_emptied"]


def check_emptied(
    scan: Scan,
    memory: Memory,
    fleet: Fleet,
    addresses: Sequence[ProcAddress],
    here: LocalReplicas,
) -> None:
    """Raise ``WorkspaceEmptied`` where hosts, or replicas that are ``here``, have files of a folder
    that nothing is in, and that nothing was in whenever this process looked."""
    workspace = memory.workspace
    if len(memory.inhabited) == len(workspace.folders):
        return
    bare = bare_folders(workspace, scan.manifest)
    memory.inhabited.update(folder for folder in workspace.folders if folder not in bare)
    bare = [folder for folder in bare if folder not in memory.inhabited]
    if bare:
        for held in (*host_states(memory, fleet, addresses), *here.held()):
            refuse_emptied(workspace, bare, held)
