"""An author's memory of one workspace from one push to the next."""

from __future__ import annotations

from monarch.runtime.workspace.pushing.sharing import Sharing
from monarch.wire.address import Uid
from monarch_sync.push import HostView
from monarch_sync.scanning.scanner import Scanner
from monarch_sync.tree.manifest import Manifest
from monarch_sync.workspace import Folder, Workspace


class Memory:
    """What an author knows. ``views`` has the state of each host, ``found`` the digest that a host
    reported.

    ``last`` is the state that was pushed last, ``generation`` its number, and ``run`` the state
    that was switched to last; ``left`` is the state that still runs on hosts whose files have
    changed, or may have, and whose processes have not. ``sharing`` is about hosts that see one
    folder. ``inhabited`` are the folders that had files in them when this process looked.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.scanner = Scanner(workspace)
        self.views: dict[Uid, HostView] = {}
        self.host_names: dict[Uid, str] = {}
        self.found: dict[Uid, str] = {}
        self.sharing = Sharing(workspace)
        self.last: Manifest | None = None
        self.run: Manifest | None = None
        self.left: dict[Uid, Manifest] = {}
        self.inhabited: set[Folder] = set()
        self.generation = 0
