"""Keeps folders on many machines equal. Knows no actors.

    from monarch_sync import Replica, Workspace, sync_local

    with_code = Workspace(dirs={"/home/me/project": ""})
    report = sync_local(with_code, Replica("/data/project"))
    print(report)

Over a network, a ``Push`` for each host makes the messages that its ``Replica`` answers; whoever
uses this package carries them. ``monarch_reload`` changes the code of a running process.

What to open, by what is to be changed:

- how a first sync is sent while the author still scans: `instalments.py`,
  `monarch/runtime/workspace/pushing/first_look.py`, `monarch_sync/replicas/ahead.py`
- what a push sends, and asks for: `push.py`, `monarch_sync/scanning/contents.py`
- what a host remembers of earlier generations: `history.py`, `monarch_sync/replicas/recall.py`
- what cannot be moved in a replica: mounts; folders that are not all ours, or of a container's
  image: `mounts.py`; `monarch_sync/replicas/whole_folders.py`
- how an edit travels: `delta.py`, `monarch_sync/scanning/contents.py`,
  `monarch_sync/replicas/unpacking.py`, for large files `monarch_sync/replicas/patch_file.py`
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch_sync.errors import (
        BadManifest,
        BadMessage,
        ContentGone,
        GenerationUnknown,
        MovedUnderfoot,
        PushRefused,
        ReplicaBusy,
        SyncError,
        SyncFailed,
        VersionMismatch,
        WatchEnded,
        WorkspaceEmptied,
        WorkspaceMissing,
    )
    from monarch_sync.host_report import HostReport
    from monarch_sync.instalments import Instalments
    from monarch_sync.local import sync_local
    from monarch_sync.manifest import Manifest
    from monarch_sync.push import HostView, Outgoing, Push
    from monarch_sync.replicas.replica import Replica
    from monarch_sync.report import Problem, Refusal, SyncReport
    from monarch_sync.scanning.scanner import Scan, Scanner, scan
    from monarch_sync.watching.watch import Watcher
    from monarch_sync.workspace import Folder, Workspace

__all__ = [
    "BadManifest",
    "BadMessage",
    "ContentGone",
    "Folder",
    "GenerationUnknown",
    "HostReport",
    "HostView",
    "Instalments",
    "Manifest",
    "MovedUnderfoot",
    "Outgoing",
    "Problem",
    "Push",
    "PushRefused",
    "Refusal",
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
    "WorkspaceEmptied",
    "WorkspaceMissing",
    "scan",
    "sync_local",
]

_HOMES = {
    "BadManifest": "errors",
    "BadMessage": "errors",
    "ContentGone": "errors",
    "Folder": "workspace",
    "GenerationUnknown": "errors",
    "HostReport": "host_report",
    "HostView": "push",
    "Instalments": "instalments",
    "Manifest": "manifest",
    "MovedUnderfoot": "errors",
    "Outgoing": "push",
    "Problem": "report",
    "Push": "push",
    "PushRefused": "errors",
    "Refusal": "report",
    "Replica": "replicas.replica",
    "ReplicaBusy": "errors",
    "Scan": "scanning.scanner",
    "Scanner": "scanning.scanner",
    "SyncError": "errors",
    "SyncFailed": "errors",
    "SyncReport": "report",
    "VersionMismatch": "errors",
    "WatchEnded": "errors",
    "Watcher": "watching.watch",
    "Workspace": "workspace",
    "WorkspaceEmptied": "errors",
    "WorkspaceMissing": "errors",
    "scan": "scanning.scanner",
    "sync_local": "local",
}


def __getattr__(name: str) -> Any:
    # Imported when asked for: a process that only reloads needs neither scanner nor replica.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
