"""The few changes that a replica makes to a disk, each in one step.

All writes of a replica go through this class, so that a test can stop it between any two steps.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterable
from ctypes import c_char_p, c_int, c_uint
from pathlib import Path

from monarch_sync.content.digest import ContentHasher

Content = bytes | bytearray | memoryview
AnyPath = str | os.PathLike[str]

_BLOCK = 1 << 20
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_NO_COPIES = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EXDEV)
_BESIDE = ".old"
_HASHED_BLOCK = 256 << 10
_ZEROS = bytes(_BLOCK)
_HAS_COPY_FILE_RANGE = hasattr(os, "copy_file_range")


class Disk:
    """Changes a disk. Each method is one step; a replica writes in no other way.

    ``can_exchange`` False: never ask the file system to exchange two files in one step. If it is
    True, a file system that cannot do this is noticed.
    """

    def __init__(self, *, can_exchange: bool = True) -> None:
        self._can_exchange = can_exchange

    def write(self, path: Path, content: Content, mode: int = 0o600) -> None:
        """Write a file as a whole or not at all; it replaces an existing file. The content is
        written to ``NAME.part`` in the same folder, which is then renamed.
        """
        beside = path.with_name(f"{path.name}.part")
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
        os.replace(beside, path)

    def put(self, path: AnyPath, content: Content, mode: int, mtime: int | None = None) -> None:
        """Write a file with this content; long runs of zeros become holes. ``mtime`` is the file's
        time, in seconds; None: the present."""
        fd = _create(path, mode)
        try:
            if len(content) >= _BLOCK or os.write(fd, content) < len(content):
                os.lseek(fd, 0, os.SEEK_SET)
                _write_sparsely(fd, memoryview(content))
            if mtime is not None:
                os.utime(fd, (mtime, mtime))
        finally:
            os.close(fd)

    def patch(
        self, path: AnyPath, pieces: Iterable[tuple[int, int] | bytes], base: AnyPath, mode: int
    ) -> bytes:
        """Write a file made of pieces: bytes, or (offset, size) of the file ``base``. Return its
        digest."""
        hasher = ContentHasher()
        fd = _create(path, mode)
        try:
            with open(base, "rb", buffering=0) as old:
                for piece in pieces:
                    if isinstance(piece, tuple):
                        _hash_range(old.fileno(), fd, *piece, hasher)
                    else:
                        hasher.update(piece)
                        _write_all(fd, memoryview(piece))
            return hasher.digest()
        finally:
            os.close(fd)

    def overwrite(
        self, path: AnyPath, writes: Iterable[tuple[int, bytes]], size: int, mtime: int
    ) -> None:
        """Write (offset, bytes) into an existing file, and make `size` bytes its length."""
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            for offset, data in writes:
                view = memoryview(data)
                while len(view):
                    written = os.pwrite(fd, view, offset)
                    offset += written
                    view = view[written:]
            os.ftruncate(fd, size)
            os.utime(fd, (mtime, mtime))
        finally:
            os.close(fd)

    def append(self, path: Path, offset: int, content: bytes) -> None:
        """Write ``content`` at ``offset``. Everything that the file has from ``offset`` on is
        removed first.
        """
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(fd).st_size > offset:  # truncating takes 50 us even if nothing is cut off
                os.ftruncate(fd, offset)
            if os.pwrite(fd, content, offset) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        finally:
            os.close(fd)

    def copy(self, source: AnyPath, target: AnyPath, mode: int) -> None:
        """Write a file with the content of another file."""
        with open(source, "rb", buffering=0) as old:
            size = os.fstat(old.fileno()).st_size
            fd = _create(target, mode)
            try:
                copy_range(old.fileno(), fd, 0, size)
            finally:
                os.close(fd)

    def link(self, source: AnyPath, target: AnyPath) -> None:
        """Give a file a second name (a hard link); do nothing if the name is taken. Where the file
        system allows no hard link, copy the file."""
        try:
            os.link(source, target, follow_symlinks=False)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self.copy(source, target, stat.S_IMODE(os.lstat(source).st_mode))

    def set_time(self, path: AnyPath, seconds: int) -> None:
        os.utime(path, (seconds, seconds))

    def rename(self, source: AnyPath, target: AnyPath) -> None:
        os.replace(source, target)

    def move(self, source: str, target: str) -> None:
        """Rename a file or a folder. A folder that came with a container's image cannot be renamed;
        its content is moved piece by piece."""
        try:
            self.rename(source, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            mode = stat.S_IMODE(os.lstat(source).st_mode)
            self.make_folder(target, mode | 0o700)
            for name in os.listdir(source):
                self.move(f"{source}/{name}", f"{target}/{name}")
            self.remove_folder(source)
            self.chmod(target, mode)

    def exchange(self, first: AnyPath, second: AnyPath) -> None:
        """Exchange two files, in one step if the file system can do that.

        Otherwise it takes several steps, between which a file always exists at ``second``.
        """
        if self._can_exchange and _exchange(first, second):
            return
        beside = f"{os.fspath(first)}{_BESIDE}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        self.link(second, beside)
        self.rename(first, second)
        self.rename(beside, first)

    def finish_exchanges(self, folder: str) -> None:
        """Finish exchanges in this folder that were interrupted, on file systems that cannot
        exchange two files in one step."""
        for name in os.listdir(folder):
            if not name.endswith(_BESIDE):
                continue
            beside, path = f"{folder}/{name}", f"{folder}/{name.removesuffix(_BESIDE)}"
            if os.path.lexists(path):
                os.unlink(beside)  # neither file has been renamed yet
            else:
                os.rename(beside, path)

    def unlink(self, path: AnyPath) -> None:
        os.unlink(path)

    def make_folder(self, path: AnyPath, mode: int = 0o755) -> None:
        os.mkdir(path, mode)

    def remove_folder(self, path: AnyPath) -> None:
        os.rmdir(path)

    def make_link(self, path: AnyPath, target: str) -> None:
        os.symlink(target, path)

    def chmod(self, path: AnyPath, mode: int) -> None:
        os.chmod(path, mode)


def _create(path: AnyPath, mode: int) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    if os.fstat(fd).st_mode & 0o7777 != mode:
        os.fchmod(fd, mode)
    return fd


def _load_renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    renameat2.argtypes = (c_int, c_char_p, c_int, c_char_p, c_uint)
    return renameat2


_renameat2 = _load_renameat2()
_HERE = -100  # AT_FDCWD
_EXCHANGE = 2
_NAMES = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()  # as `os.fsencode`, faster


def _exchange(first: AnyPath, second: AnyPath) -> bool:
    """Exchange two files in one step; return False where the file system cannot do that."""
    if _renameat2 is None:
        return False
    raw_first, raw_second = os.fspath(first).encode(*_NAMES), os.fspath(second).encode(*_NAMES)
    if not _renameat2(_HERE, raw_first, _HERE, raw_second, _EXCHANGE):
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), os.fspath(second))


def _write_sparsely(fd: int, view: memoryview) -> None:
    if len(view) < _BLOCK:
        _write_all(fd, view)
        return
    for at in range(0, len(view), _BLOCK):
        block = view[at : at + _BLOCK]
        if block == _ZEROS[: len(block)]:
            os.ftruncate(fd, os.lseek(fd, len(block), os.SEEK_CUR))
        else:
            _write_all(fd, block)


def copy_range(source: int, target: int, offset: int, size: int) -> None:
    """Copy ``size`` bytes, from the offset ``offset`` of the open file ``source``, to the present
    position in ``target``. Fewer bytes are copied if ``source`` ends before that.
    """
    while size >= _BLOCK and _HAS_COPY_FILE_RANGE:
        try:
            copied = os.copy_file_range(source, target, size, offset)
        except OSError as error:
            if error.errno not in _NO_COPIES:
                raise
            break
        if not copied:
            break  # some file systems return 0 for files that they cannot copy
        offset += copied
        size -= copied
    while size > 0:
        copied = os.write(target, os.pread(source, min(size, _BLOCK), offset))
        if not copied:
            return  # the old file has become shorter; its digest is checked later
        offset += copied
        size -= copied


def _hash_range(source: int, target: int, offset: int, size: int, hasher: ContentHasher) -> None:
    # Copied in small blocks, so that each is hashed while it is in the processor's cache.
    buffer = bytearray(min(size, _HASHED_BLOCK))
    view = memoryview(buffer)
    while size > 0:
        got = os.preadv(source, [view[: min(size, len(buffer))]], offset)
        if not got:
            return  # the old file has become shorter; its digest is checked later
        hasher.update(view[:got])
        _write_all(target, view[:got])
        offset += got
        size -= got


def _write_all(fd: int, view: memoryview) -> None:
    while len(view):
        view = view[os.write(fd, view) :]
