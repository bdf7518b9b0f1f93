"""Ready: how the files of the next commit get their content, once it is on the host."""

from __future__ import annotations

import os
import stat
import time
from typing import NamedTuple

from monarch_sync.replicas.patch_file import Patch

SECOND_NS = 1_000_000_000


class ReadyContent(NamedTuple):
    """The content for a file that a commit will write. ``source`` is the path of the content; "" if
    the file has this content already.

    ``status`` and ``digest`` describe the present file at the file's own path, as staging found it;
    None if there was no file. ``is_stored``: the source is in the store. ``is_linked``: the source
    is a second name of a visible file. ``patch``: the file is changed in place by this patch, which
    is saved at ``source``. ``mtime_ns``: the mtime of the source when it was staged; another value
    later shows that a program has changed it. 0 for a new file.
    """

    source: str
    status: os.stat_result | None = None
    digest: bytes | None = None
    is_stored: bool = False
    is_linked: bool = False
    patch: Patch | None = None
    mtime_ns: int = 0


class Swap(NamedTuple):
    """A file that the commit replaces by an exchange with the file at ``source``, without any
    further check of folders.

    ``status`` is the status of the present file; ``old`` and ``new`` are the digests of the present
    and of the new content.
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
    """Return the mtime, in whole seconds, for a file that replaces the file with this status. None
    if ``status`` is None or not that of a regular file.

    The mtime is later than the second of the old file's mtime, because Python uses old bytecode if
    the source's size and its mtime in whole seconds match. It is not the present second, unless it
    must be later than the old mtime, so that a later change by a program gives the file another
    mtime.
    """
    if status is None or not stat.S_ISREG(status.st_mode):
        return None
    return max(int(status.st_mtime) + 1, int(time.time()) - 1)
