"""An author's memory of one workspace from one push to the next."""

from __future__ import annotations

from monarch.runtime.workspace.pushing.sharing import Sharing
from monarch.wire.address import Uid
from monarch_sync.push import HostView
from monarch_sync.scanning.scanner import Scanner
from monarch_sync.tree.manifest import Manifest
from monarch_sync.workspace import Folder, Workspace


class Memory:
    """What an author knows about its workspace, and about the hosts that it pushes to."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.scanner = Scanner(workspace)
        #: The state of each host. Another thread removes a host that is lost.
        self.views: dict[Uid, HostView] = {}
        #: The names of hosts, for people.
        self.host_names: dict[Uid, str] = {}
        #: The digest of the state that each host has reported.
        self.digests: dict[Uid, str] = {}
        #: Which hosts see one folder.
        self.sharing = Sharing(workspace)
        #: The state that was pushed last; None before the first push.
        self.last: Manifest | None = None
        #: The state that processes have switched to last.
        self.run: Manifest | None = None
        #: The state that processes still run on hosts whose files have changed, or may have.
        self.outdated: dict[Uid, Manifest] = {}
        #: The folders that had files in them when this process looked.
        self.inhabited: set[Folder] = set()
        #: The number of the last state.
        self.generation = 0
