"""Keeps folders on many machines equal, and reloads what changed. Knows no actors.

    from monarch_sync import Replica, Workspace, sync_local

    with_code = Workspace(dirs={"/home/me/project": ""})
    report = sync_local(with_code, Replica("/data/project"))
    print(report)

Over a network, a ``Push`` for each host makes the messages that its ``Replica`` answers; whoever
uses this package carries them. ``monarch_sync.reload`` changes the code of a running process.
"""

from monarch_sync.errors import (
    BadManifest,
    BadMessage,
    MovedUnderfoot,
    PushRefused,
    ReplicaBusy,
    SyncError,
    SyncFailed,
    VersionMismatch,
    WatchEnded,
    WorkspaceMissing,
)
from monarch_sync.local import sync_local
from monarch_sync.manifest import Manifest
from monarch_sync.push import HostView, Outgoing, Push
from monarch_sync.replica import Replica
from monarch_sync.report import HostReport, Problem, SyncReport
from monarch_sync.scan import Scan, Scanner, scan
from monarch_sync.watch import Watcher
from monarch_sync.workspace import Folder, Workspace

__all__ = [
    "BadManifest",
    "BadMessage",
    "Folder",
    "HostReport",
    "HostView",
    "Manifest",
    "MovedUnderfoot",
    "Outgoing",
    "Problem",
    "Push",
    "PushRefused",
    "Replica",
    "ReplicaBusy",
    "Scan",
    "Scanner",
    "SyncError",
    "SyncFailed",
    "SyncReport",
    "VersionMismatch",
    "WatchEnded",
    "Watcher",
    "Workspace",
    "WorkspaceMissing",
    "scan",
    "sync_local",
]
