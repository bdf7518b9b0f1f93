"""Ready: how the files of the next commit get their content, once it is on the host."""

from __future__ import annotations

import os
import stat
import time
from typing import NamedTuple

from monarch_sync.replicas.patch_file import Patch

SECOND_NS = 1_000_000_000


class ReadyContent(NamedTuple):
    """The way in which a file gets its content. ``source`` is the path of the content; "" if the
    file has it already.

    ``status`` and ``digest`` are those of the file at its own path when it was staged; None if
    there was none. ``is_stored``: the source is in the store. ``is_linked``: the source is a second
    name of a visible file. ``patch``: the file is changed in place, by this patch, which is also in
    the source. ``mtime_ns``: the time of the source, by which a change by another program shows; 0
    for a file that is new.
    """

    source: str
    status: os.stat_result | None = None
    digest: bytes | None = None
    is_stored: bool = False
    is_linked: bool = False
    patch: Patch | None = None
    mtime_ns: int = 0


class Swap(NamedTuple):
    """A file of the workspace that the commit only has to exchange with its new content, at
    ``source``.

    ``status`` is that of the present file, ``old`` and ``new`` are the digests of the two contents.
    """

    folder: str
    path: str
    source: str
    status: os.stat_result
    old: bytes
    new: bytes
    is_stored: bool
    mtime_ns: int


def time_after(status: os.stat_result | None) -> int | None:
    """Return the mtime, in whole seconds, for a file that replaces the file with this status; None
    if there is no such file.

    It differs from the present time, so that a change by another program shows, and from the second
    of the old file: Python takes bytecode for fresh if the source's size and its mtime in whole
    seconds match.
    """
    if status is None or not stat.S_ISREG(status.st_mode):
        return None
    return max(int(status.st_mtime) + 1, int(time.time()) - 1)
