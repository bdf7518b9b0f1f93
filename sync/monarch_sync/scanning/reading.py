"""Reading the author's files, which other programs may replace, rewrite or truncate at any
moment."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import signal
import stat
import sys
import tempfile
from typing import BinaryIO

from monarch_sync.content.digest import LARGE_BYTES
from monarch_sync.content.disk import copy_range

_MAX_HELD_BYTES = 256 << 20
_MAX_SHARE_OF_ROOM = 0.5
_FICLONE = 0x40049409


def open_file(path: str | os.PathLike[str]) -> int:
    """Open a path for reading and return the descriptor. Does not wait for a pipe.

    Raises ``OSError`` if it cannot be opened, and for a link, which is not followed.
    """
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


def is_being_written(fd: int) -> bool:
    """Return whether any program has this file open to write, as far as that can be found out."""
    if sys.platform != "linux":
        return False
    try:
        # If a program opens the file while we have the lease, the program waits, and we get a
        # signal.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # is ignored
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def read_exactly(fd: int, size: int, offset: int) -> bytes:
    """Return ``size`` bytes of a file from ``offset``. Raises ``OSError`` if the file ends
    before."""
    data = os.pread(fd, size, offset)
    if len(data) < size:
        raise OSError("the file has become shorter")
    return data


def read_file(
    path: str | os.PathLike[str], max_held_bytes: int = _MAX_HELD_BYTES
) -> bytes | memoryview:
    """Return the present content of a file; later changes of the file do not change it. Raises
    ``OSError``, also if it is no file.

    A large file is not read into memory. Nor is it mapped: if a program truncated it, this process
    would be killed. Instead a copy without a name is mapped, which no other program can reach. The
    copy shares the file's blocks if the file system can do that; elsewhere it may take half of the
    free space of its disk, or of the disk for temporary files. Without room for a copy, a file that
    is not too large is read into memory after all, and a larger one is mapped itself.
    """
    fd = open_file(path)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is no file any more")
        if status.st_size >= LARGE_BYTES:
            for folder in (os.path.dirname(path), None):
                with contextlib.suppress(OSError, ValueError):
                    return _mapped_copy(fd, status.st_size, folder)
            if status.st_size > max_held_bytes:
                return _mapped(fd)
            os.lseek(fd, 0, os.SEEK_SET)
        with open(fd, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(fd)


def _mapped_copy(fd: int, size: int, folder: str | None) -> memoryview:
    """Copy an open file, of ``size`` bytes, into a file without a name, and return a mapping of the
    copy. ``folder``: where the copy lies; None: with the temporary files.
    """
    with _nameless(folder) as copy:
        if not _share_blocks(fd, copy.fileno()):
            if size > shutil.disk_usage(copy.fileno()).free * _MAX_SHARE_OF_ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            copy_range(fd, copy.fileno(), 0, size)
        return _mapped(copy.fileno())


def _nameless(folder: str | None) -> BinaryIO:
    """Open a new file that is in no folder. A file with a name, even for a moment, would raise an
    event in each watch of a workspace, and on NFS it stays visible until it is closed."""
    if folder is None:
        return tempfile.TemporaryFile(buffering=0)
    flags = getattr(os, "O_TMPFILE", 0)
    if not flags:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    return open(os.open(folder, flags | os.O_RDWR | os.O_CLOEXEC, 0o600), "r+b", buffering=0)


def _share_blocks(source: int, target: int) -> bool:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def _mapped(fd: int) -> memoryview:
    return memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
