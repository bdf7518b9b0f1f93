"""Emptied: a folder of which nothing is synced any more, though hosts have files of it.

If a disk is not mounted, its mount point is an empty folder; one ignore pattern too many leaves out
a whole folder. To push that would delete the files on the hosts, which few want. A scan that has
seen files in the folder before knows better: they were deleted (see `identities` for a disk that is
unmounted meanwhile).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from monarch_sync.errors import WorkspaceEmptied
from monarch_sync.tree.manifest import Manifest
from monarch_sync.workspace import Folder, Workspace


def bare_folders(workspace: Workspace, manifest: Manifest) -> list[Folder]:
    """Return the folders of a workspace from which the manifest has no file."""
    return [
        folder
        for folder in workspace.folders
        if next(_files_of(folder, workspace, manifest), None) is None
    ]


def refuse_emptied(workspace: Workspace, bare: Iterable[Folder], host_manifest: Manifest) -> None:
    """Raise `WorkspaceEmptied` if the host has files of one of the folders ``bare``.
    ``host_manifest`` is the host's manifest.
    """
    for folder in bare:
        num_files = sum(1 for _ in _files_of(folder, workspace, host_manifest))
        if num_files:
            raise WorkspaceEmptied(str(folder.local), num_files)


def _files_of(folder: Folder, workspace: Workspace, manifest: Manifest) -> Iterator[str]:
    """Yield the files of one folder of the workspace that a manifest has. Files of another folder
    that lands inside this folder are left out.
    """
    inside = [
        other.remote
        for other in workspace.folders
        if other.remote != folder.remote and folder.relative_of(other.remote) is not None
    ]
    for path in manifest.files_below(folder.remote):
        if not any(path.startswith(f"{landing}/") for landing in inside):
            yield path
