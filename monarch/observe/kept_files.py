"""Opens files of a run's folder safely: the folder may come from a stranger.

A link in it could lead to any file of the reader, whose text would then be shown as a log. So no
link is followed out of the folder, and only plain files are opened: opening a named pipe would
block.
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
    """Open a file of a run's ``folder`` to read, by default of the file's own folder.

    Raises ``OSError``, also if links lead out of the folder, or it is no plain file.
    """
    if leads_out(path, folder or path.parent):
        raise OSError(errno.ELOOP, "a link leads out of the run's folder", str(path))
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return os.fdopen(fd, "rb")


def read_kept(path: Path, folder: Path | None = None) -> bytes:
    """Return the content of a file of a run's folder; see ``open_kept``."""
    with open_kept(path, folder) as file:
        return file.read()


def open_to_append(path: Path) -> int:
    """Open a file of a run's folder for reading and appending; return the file descriptor.

    It is made if it does not exist. Raises ``OSError`` for a link that leads out of the folder.
    """
    if leads_out(path, path.parent) and (path.is_file() or not path.exists()):
        raise OSError(errno.ELOOP, "a link leads out of the run's folder", str(path))
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
