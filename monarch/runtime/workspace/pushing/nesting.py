"""Nesting: a host that keeps its copy inside the workspace itself.

Each push would take the copy along, into the copy, and the next one that, too.
"""

from __future__ import annotations

import os

from monarch.runtime.workspace.pushing.shared_folder import folder_id
from monarch_sync.ignoring.ignore import is_wanted
from monarch_sync.words import printable
from monarch_sync.workspace import Workspace

__all__ = ["why_nested"]


def why_nested(workspace: Workspace, root: str, replica_id: str) -> str:
    """Why a replica at ``root``, whose id is ``replica_id``, cannot have this workspace, if its
    folders would land inside themselves; else ""."""
    if not replica_id or folder_id(root) != replica_id:
        return ""  # It lies on another machine.
    real = os.path.realpath(root)
    for folder in workspace.folders:
        landing = os.path.join(real, folder.remote) if folder.remote else real
        inside = folder.inside(landing)
        if not inside:
            continue
        there = inside if os.path.lexists(landing) else folder.inside(real)
        uses_git = folder.follows_git
        if there and not is_wanted(folder.local, workspace.ignore, there, {}, uses_git=uses_git):
            continue
        return (
            f"its copy of {printable(str(folder.local))} lies inside that, in "
            f"{printable(landing)}, so each push would bring the copy along, into itself. Leave "
            f"it out, with the line\n    /{printable(inside)}/\nin "
            f"{printable(str(folder.local))}/.monarchignore, or give the host another WORKSPACE_DIR"
        )
    return ""
