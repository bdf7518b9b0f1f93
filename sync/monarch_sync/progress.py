"""How far a push is, for a program that shows it while the push runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import BinaryIO, cast


@dataclass
class Progress:
    """How far one push is. The pushing thread writes it; any thread may read it.

    ``num_listed`` paths were found, ``num_files`` files were read. ``path`` is the large file that
    is being read, with ``path_bytes_read`` of its ``path_bytes`` read. ``bytes_to_send`` is the sum
    over all hosts. ``num_ready`` of ``num_hosts`` hosts have received all content that they need.
    """

    step: str = "scan"
    num_listed: int = 0
    num_files: int = 0
    bytes_read: int = 0
    path: str = ""
    path_bytes: int = 0
    path_bytes_read: int = 0
    bytes_to_send: int = 0
    num_hosts: int = 0
    num_ready: int = 0

    def read(self, num_bytes: int) -> None:
        """Count a file that the scan has read."""
        self.num_files += 1
        self.bytes_read += num_bytes

    @contextmanager
    def reading(self, path: str, num_bytes: int, file: BinaryIO) -> Iterator[BinaryIO]:
        """Show this large file as being read while the block runs; yield the file, which counts the
        bytes that are read from it."""
        self.path_bytes, self.path_bytes_read, self.path = num_bytes, 0, path
        try:
            yield cast(BinaryIO, _Counted(file, self))
        finally:
            self.path = ""


class _Counted:
    """A file that adds the bytes read from it to the progress."""

    def __init__(self, file: BinaryIO, progress: Progress) -> None:
        self._file = file
        self._progress = progress

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        self._progress.path_bytes_read += len(content)
        return content


_current: ContextVar[Progress | None] = ContextVar("monarch_sync_progress", default=None)


def progress() -> Progress:
    """Return the `Progress` that this push writes to; a fresh one if nobody follows the push."""
    return _current.get() or Progress()


@contextmanager
def followed_by(follower: Progress) -> Iterator[None]:
    """Have the pushes of this block, in this thread, write their progress to ``follower``."""
    token = _current.set(follower)
    try:
        yield
    finally:
        _current.reset(token)
