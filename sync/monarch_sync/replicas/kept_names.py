"""Kept names: what a host's own file is called that makes room for one of ours."""

from __future__ import annotations

import itertools
import os
import stat

from monarch_sync.stamps import digest_of

__all__ = ["NO_DIGEST", "kept_name"]

NO_DIGEST = "0" * 8
"""The mark of what has no content to be told by: folders and links."""

_MAX_NAME_BYTES = 255


def kept_name(root: str, name: str, mark: str = NO_DIGEST) -> str:
    """`NAME.host-MARK`, a path below ``root`` as ``name`` is.

    Where that would be too long, NAME is cut. Where something else stands there, which nobody may
    replace either, it is `NAME.host-MARK-2`, and so on.
    """
    folder, slash, base = name.rpartition("/")
    for number in itertools.count(1):
        tail = f".host-{mark}" if number == 1 else f".host-{mark}-{number}"
        while len(os.fsencode(base)) + len(tail) > _MAX_NAME_BYTES:
            base = base[:-1]
        kept = f"{folder}{slash}{base}{tail}"
        if _may_be_at(f"{root}/{name}", f"{root}/{kept}"):
            return kept
    raise AssertionError("there are more numbers than files")


def _may_be_at(path: str, kept: str) -> bool:
    """Whether nothing is there, or the very same."""
    try:
        there = os.lstat(kept)
    except FileNotFoundError:
        return True
    ours = os.lstat(path)
    if os.path.samestat(ours, there):
        return True
    if stat.S_ISLNK(ours.st_mode) and stat.S_ISLNK(there.st_mode):
        return os.readlink(path) == os.readlink(kept)
    is_content = stat.S_ISREG(ours.st_mode) and stat.S_ISREG(there.st_mode)
    return is_content and ours.st_size == there.st_size and digest_of(path) == digest_of(kept)
