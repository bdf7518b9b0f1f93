"""Ready: how the files of the next commit get their content, once that is on the host."""

from __future__ import annotations

import os
import stat
import time
from typing import NamedTuple

from monarch_sync.replicas.patch_file import Patch

SECOND_NS = 1_000_000_000


class ReadyContent(NamedTuple):
    """The way a file gets its content: ``place`` is where that lies, "" if it is there already.

    ``before`` and ``digest``: the status and content at the file's path when we looked.
    ``is_stored``: the place is in the store. ``is_linked``: it is another name of a file that is
    visible. ``patch``: the file must be changed where it stands; the place has a note of how.
    ``mtime_ns``: the time of the file at the place, which shows a change by any other program; 0
    for a file that is new.
    """

    place: str
    before: os.stat_result | None = None
    digest: bytes | None = None
    is_stored: bool = False
    is_linked: bool = False
    patch: Patch | None = None
    mtime_ns: int = 0


class Swap(NamedTuple):
    """A file of ours that changes places with the next: all that a commit has to know of it.

    ``before``: what stands at the path, with the content ``old``; ``new`` lies at ``place``.
    """

    folder: str
    path: str
    place: str
    before: os.stat_result
    old: bytes
    new: bytes
    is_stored: bool
    mtime_ns: int


def time_after(before: os.stat_result | None) -> int | None:
    """The mtime for a file that replaces another. It is not the present time, so that a change by
    another program shows. Python takes bytecode for fresh if source size and mtime in whole seconds
    agree, so it must not be the second of the file before, either."""
    if before is None or not stat.S_ISREG(before.st_mode):
        return None
    return max(int(before.st_mtime) + 1, int(time.time()) - 1)
