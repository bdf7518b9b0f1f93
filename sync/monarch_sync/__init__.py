"""Keeps folders on many machines equal. Knows no actors.

    from monarch_sync import Replica, Workspace, sync_local

    with_code = Workspace(dirs={"/home/me/project": ""})
    report = sync_local(with_code, Replica("/data/project"))
    print(report)

Over a network, a ``Push`` for each host makes the messages that its ``Replica`` answers; the user
of this package carries them. ``monarch_reload`` changes the code of a running process.

Its folders: ``content`` has digests and pieces of files, ``tree`` folders as values, ``ignoring``
git's rules; ``scanning`` reads folders into a manifest, ``watching`` notices saves, ``replicas`` is
a host's copy: staged, committed, remembered.

What to open, by what you change:

- how a first sync is sent while the author still scans: `instalments.py`,
  `monarch/runtime/workspace/pushing/first_look.py`, `monarch_sync/replicas/ahead.py`
- what a push sends, and asks for: `push.py`, `monarch_sync/scanning/contents.py`
- what a host remembers of earlier generations: `history.py`, `monarch_sync/replicas/recall.py`
- what cannot be moved in a replica: mounts; folders that are not all ours, or of a container's
  image: `mounts.py`; `monarch_sync/replicas/whole_folders.py`
- how an edit travels: `monarch_sync/content/delta.py`, `monarch_sync/scanning/contents.py`,
  `monarch_sync/replicas/staging.py`, for large files `monarch_sync/replicas/patch_file.py`

The other files:

    workspace, editable        the folders of a workspace; packages that are installed editable
    messages, frames           messages between author and host; records in an appended file
    report, host_report,       the report of a sync; of one host; how far a push is
      progress
    touched                    the paths that a watcher names
    local                      a sync without a network
    words, errors              numbers and names in texts; all errors
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Type checkers take the names from their homes.
    from monarch_sync.errors import *  # noqa: F403
    from monarch_sync.host_report import *  # noqa: F403
    from monarch_sync.instalments import *  # noqa: F403
    from monarch_sync.local import *  # noqa: F403
    from monarch_sync.push import *  # noqa: F403
    from monarch_sync.replicas.replica import *  # noqa: F403
    from monarch_sync.report import *  # noqa: F403
    from monarch_sync.scanning.scanner import *  # noqa: F403
    from monarch_sync.tree.manifest import *  # noqa: F403
    from monarch_sync.watching.watch import *  # noqa: F403
    from monarch_sync.workspace import *  # noqa: F403

# Each home, and the names of it that this package shows.
_NAMES = {
    "errors": """
        BadManifest BadMessage ContentGone GenerationUnknown MovedUnderfoot PushRefused
        ReplicaBusy SyncError SyncFailed VersionMismatch WatchEnded WorkspaceEmptied
        WorkspaceMissing
    """,
    "host_report": "HostReport",
    "instalments": "Instalments",
    "local": "sync_local",
    "tree.manifest": "Manifest",
    "push": "HostView Outgoing Push PushMessage",
    "replicas.replica": "Replica",
    "report": "Problem Refusal SyncReport",
    "scanning.scanner": "Scan Scanner scan",
    "watching.watch": "Watcher",
    "workspace": "Folder Workspace",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    # Imported when asked for: a process that only reloads needs neither scanner nor replica.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
