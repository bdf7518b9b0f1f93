"""Replicas on the author's own host, where its procs were given a ``$WORKSPACE_DIR`` of their own.

Procs on the author's host run the author's files where they are, and nothing is copied. But a proc
whose ``env`` or bootstrap names a ``$WORKSPACE_DIR`` expects the workspace there, as on hosts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from monarch_sync.errors import MovedUnderfoot, SyncError
from monarch_sync.host_report import HostReport
from monarch_sync.local import push_local
from monarch_sync.replicas.replica import Replica
from monarch_sync.scanning.contents import Contents
from monarch_sync.scanning.scanner import Scan
from monarch_sync.tree.manifest import Manifest
from monarch_sync.workspace import Folder, Workspace


class LocalReplicas:
    """The replicas on this host in one push.

    ``roots`` are their folders. A folder that contains a folder of the workspace, or lies inside
    one, is left out. ``files`` are the files that changed there, ``notes`` are texts for the
    report.
    """

    def __init__(self, workspace: Workspace, roots: Iterable[str]) -> None:
        self._workspace = workspace
        real = dict.fromkeys(os.path.realpath(root) for root in roots)
        self.roots = [root for root in real if not self._overlaps(root)]
        self._earlier: dict[str, Manifest] = {}
        self._brought: list[HostReport] = []
        self.files: list[str] = []
        self.notes: list[str] = []

    def _overlaps(self, root: str) -> bool:
        folders = self._workspace.folders
        landings = [_landing(root, folder) for folder in folders]
        mine = [Folder(Path(os.path.realpath(f.local)), f.remote) for f in folders]
        return any(folder.overlaps(landing) for folder in mine for landing in landings)

    @property
    def import_folders(self) -> list[str]:
        """Return the folders in the replicas that the workspace's folders land in."""
        return [_landing(root, folder) for root in self.roots for folder in self._workspace.folders]

    def places(self, path: str) -> list[str]:
        """Return the path that a file of the manifest has in each replica here."""
        return [os.path.join(root, path) for root in self.roots]

    def held(self) -> list[Manifest]:
        """Return the present manifests of the replicas, without those that cannot be read."""
        manifests = []
        for root in self.roots:
            with (
                contextlib.suppress(SyncError, OSError),
                contextlib.closing(Replica(root)) as replica,
            ):
                manifests.append(replica.manifest)
        return manifests

    def bring(self, scan: Scan, contents: Contents) -> str:
        """Show a state in all replicas here; return "" or which replica could not take it, and why.

        Raises ``MovedUnderfoot`` for a file that has changed since the scan.
        """
        for root in self.roots:
            try:
                with contextlib.closing(Replica(root)) as replica:
                    current = replica.manifest
                    if current == scan.over(current).manifest:
                        continue
                    if not replica.generation:
                        self.notes.append(f"copied to {root}, the $WORKSPACE_DIR of procs here")
                    report = push_local(self._workspace, scan, contents, replica)
            except MovedUnderfoot:
                raise
            except (SyncError, OSError) as error:
                return f"{root}, the $WORKSPACE_DIR of procs here: {error}"
            self._earlier[root] = current
            self._brought += report.hosts
            self.files += report.changed_files
        return ""

    def take_back(self) -> str:
        """Show the states from before `bring` again; return "" or which replicas could not, and
        why.
        """
        faults = []
        for root, manifest in self._earlier.items():
            try:
                with contextlib.closing(Replica(root)) as replica:
                    contents = Contents(self._workspace)
                    scan = Scan(manifest, [])
                    push_local(self._workspace, scan, contents, replica, takes_back=True)
            except (SyncError, OSError) as error:
                faults.append(f"{root} could not go back: {error}")
        self._earlier.clear()
        for results in (self._brought, self.files, self.notes):
            results.clear()
        return "; ".join(faults)

    def count_into(self, report: HostReport) -> None:
        """Add the changes in all replicas here to the report of this host."""
        for changes in self._brought:
            report.add(changes)


def _landing(root: str, folder: Folder) -> str:
    return os.path.join(root, folder.remote) if folder.remote else root
