"""Files of a run's folder, as they are read: the folder may come from a stranger.

A link in it could lead to any file of whoever looks, whose text would then be shown as a log. So no
link is followed out of the folder, and nothing but a plain file is opened: a named pipe would be
waited for.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def leads_out(path: Path, folder: Path) -> bool:
    """Whether links lead from ``path`` out of ``folder``."""
    real, root = os.path.realpath(path), os.path.realpath(folder)
    return os.path.commonpath([real, root]) != root


def open_kept(path: Path, folder: Path | None = None) -> BinaryIO:
    """Open a file of a run's ``folder``, by default the one that it lies in.

    Raises ``OSError``, also for one that lies elsewhere or is no plain file.
    """
    if leads_out(path, folder or path.parent):
        raise OSError(errno.ELOOP, "a link leads out of the run's folder", str(path))
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return os.fdopen(fd, "rb")


def read_kept(path: Path, folder: Path | None = None) -> bytes:
    """The content of such a file."""
    with open_kept(path, folder) as file:
        return file.read()


def open_to_append(path: Path) -> int:
    """A descriptor to read and to add to such a file, which is made if it is not there.

    Raises ``OSError`` for a link to a file elsewhere, which is not the run's to write to.
    """
    if leads_out(path, path.parent) and (path.is_file() or not path.exists()):
        raise OSError(errno.ELOOP, "a link leads out of the run's folder", str(path))
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
