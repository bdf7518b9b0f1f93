"""Whether a folder on a host may be moved as it is, with all that is in it."""

from __future__ import annotations

import os

from monarch_sync.entry import Kind
from monarch_sync.manifest import Manifest
from monarch_sync.tree import EMPTY

__all__ = ["can_move"]


def can_move(root: str, folder: str, old: Manifest) -> bool:
    """Whether a folder holds the names that the manifest says and no others, so that it may be
    moved as it is. Python's bytecode goes with it, and so does what somebody changed in a file
    of ours; it is overwritten no more than it would have been at the old place."""
    at = root
    for part in folder.split("/"):
        at = f"{at}/{part}"
        if os.path.islink(at):
            return False
    if not os.path.isdir(at):
        return False
    pending = [(at, old.folder(folder))]
    while pending:
        path, node = pending.pop()
        num_known = 0
        with os.scandir(path) as found:
            for one in found:
                child = node.children.get(one.name)
                if child is None or child.entry is None:
                    if one.name == "__pycache__" and _is_bytecode(one.path):
                        continue
                    return False
                num_known += 1
                kind = child.entry.kind
                if kind is Kind.FILE:
                    if not one.is_file(follow_symlinks=False):
                        return False
                elif kind is Kind.LINK:
                    if not one.is_symlink():
                        return False
                elif not one.is_dir(follow_symlinks=False):
                    return False
                else:
                    pending.append((one.path, child.node or EMPTY))
        if num_known != len(node.children):
            return False
    return True


def _is_bytecode(folder: str) -> bool:
    if os.path.islink(folder) or not os.path.isdir(folder):
        return False
    with os.scandir(folder) as found:
        return all(e.name.endswith(".pyc") and e.is_file(follow_symlinks=False) for e in found)
