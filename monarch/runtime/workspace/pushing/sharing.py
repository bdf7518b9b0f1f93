"""Which hosts of a push see one folder: content is sent to one of them, and each checks the
files."""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec

from monarch.runtime.answers import Response
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.pushing.shared_folder import folder_id
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import FilesNow, HostState, Share
from monarch_sync.ignoring.ignore import is_wanted
from monarch_sync.tree.entry import to_wire
from monarch_sync.tree.manifest import Manifest
from monarch_sync.words import printable
from monarch_sync.workspace import Workspace

HERE = "here"
"""In place of a host's uid: the folder is the author's own."""


class Sharing:
    """What an author knows about the folders of its hosts, and which hosts share a folder."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        #: The id of each host's folder.
        self._ids: dict[Uid, str] = {}
        #: The host that writes each folder, by the folder's id.
        self._writers: dict[str, Uid] = {}
        #: Each host's folder, and the folder of its replica's records.
        self.roots: dict[Uid, str] = {}
        self.states: dict[Uid, str] = {}
        #: The digest of the state that each host has checked last.
        self.verified: dict[Uid, str] = {}

    def met(self, uid: Uid, state: HostState) -> None:
        """Note what a host has reported about itself."""
        self._ids[uid] = state.replica
        self.roots[uid] = state.workspace
        self.states[uid] = state.state
        self.verified[uid] = state.digest
        if state.writes:
            self._writers[self._ids[uid]] = uid

    def here(self) -> str:
        """Return the id of the workspace's own folder; `writer_for` compares it with the ids of
        hosts' folders.

        "" if the folder has no id, or if the workspace is more than one folder.
        """
        folders = self._workspace.folders
        is_one = len(folders) == 1 and not folders[0].remote
        return folder_id(folders[0].local) if is_one else ""

    def writer_for(self, uid: Uid, own_folder: str) -> Uid:
        """Return who writes the folder of the host ``uid``: another host (its uid), the author
        (``HERE``), or the host itself ("").
        """
        folder = self._ids.get(uid, "")
        if not folder:
            return ""
        if folder == own_folder:
            return HERE
        writer = self._writers.get(folder, "")
        return "" if writer == uid else writer

    def takes_over(self, uid: Uid) -> Uid:
        """Note that a host writes its folder itself from now on; return "", which stands for
        itself.
        """
        self._writers[self._ids.get(uid, "")] = uid
        return ""

    def changes(self, manifest: Manifest, last: Manifest | None, hosts: Iterable[Uid]) -> bytes:
        """Return what has changed for ``hosts`` since the state ``last``, encoded as ``Share``
        needs it. If a host has not seen that state, everything counts as changed.
        """
        has_last = last is not None and all(
            self.verified.get(uid) == last.digest.hex() for uid in hosts
        )
        paths = manifest.changed_paths(last) if has_last and last else [e.path for e in manifest]
        entries = ((path, manifest.get(path)) for path in paths)
        return msgspec.msgpack.encode(
            [
                (to_wire(path), entry.digest if entry is not None else b"")
                for path, entry in entries
                if entry is None or entry.is_file
            ]
        )

    def share(
        self, node: Node, host: ProcAddress, generation: int, digest: str, changes: bytes
    ) -> Promise[Response[FilesNow]]:
        """Ask a host whether its folder, into which another host writes, has this state now.

        ``changes`` are paths and digests of the changed files, as the method ``changes`` returns
        them. The answer says which state the host's files have. It has an error if this is another
        state.
        """
        folders = tuple(folder.remote for folder in self._workspace.folders)
        return node.ask(host, Share(generation, digest, folders), changes)


def why_nested(workspace: Workspace, root: str, replica_id: str) -> str:
    """Return why a replica at ``root`` cannot have this workspace; "" if it can. It cannot if the
    replica lies inside a folder of the workspace, so that each push would copy the copy into itself
    again.

    ``replica_id`` is the id of the replica's folder, by which a folder of another machine is
    recognized.
    """
    if not replica_id or folder_id(root) != replica_id:
        return ""  # It lies on another machine.
    real = os.path.realpath(root)
    for folder in workspace.folders:
        landing = os.path.join(real, folder.remote) if folder.remote else real
        inside = folder.inside(landing)
        if not inside:
            continue
        inner = inside if os.path.lexists(landing) else folder.inside(real)
        uses_git = folder.follows_git
        if inner and not is_wanted(folder.local, workspace.ignore, inner, {}, uses_git=uses_git):
            continue
        return (
            f"its copy of {printable(str(folder.local))} lies inside that, in "
            f"{printable(landing)}, so each push would bring the copy along, into itself. Leave "
            f"it out, with the line\n    /{printable(inside)}/\nin "
            f"{printable(str(folder.local))}/.monarchignore, or give the host another WORKSPACE_DIR"
        )
    return ""
