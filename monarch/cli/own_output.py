"""Leaves out of the workspace the files in it that this command writes its own output into.

``monarch sync --watch > sync.log`` would push its log for each line that a push adds to it.
"""

from __future__ import annotations

import os
import stat

from monarch_sync import Workspace

_SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\*?[] !#"})


def without_own_output(workspace: Workspace) -> Workspace:
    """The workspace, but for files that stdout or stderr lead to."""
    files = {file for fd in (1, 2) if (file := _file_behind(fd))}
    patterns = [
        exact_pattern(inside)
        for folder in workspace.folders
        for file in sorted(files)
        if (inside := os.path.relpath(file, os.path.realpath(folder.local))).split("/")[0] != ".."
    ]
    return workspace.ignoring(patterns) if patterns else workspace


def exact_pattern(inside: str) -> str:
    """The pattern, in an ignore file of a folder, of this one path in it."""
    return f"/{inside.translate(_SPECIAL)}"


def _file_behind(fd: int) -> str:
    """The path of the regular file that a descriptor is of; "" if it is of none."""
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            path = os.readlink(f"/proc/self/fd/{fd}")
            return path if os.path.exists(path) else ""  # not one that is deleted
    except OSError:
        pass  # closed, or a system that does not tell
    return ""
