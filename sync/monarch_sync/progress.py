"""How far a push is, for a program that shows it while it lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Progress:
    """Written by the thread that pushes; may be read by any.

    ``bytes_to_send`` is over all hosts; ``num_ready`` of ``num_hosts`` hosts have all of theirs.
    """

    step: str = "scan"
    num_files: int = 0
    bytes_read: int = 0
    bytes_to_send: int = 0
    num_hosts: int = 0
    num_ready: int = 0

    def read(self, num_bytes: int) -> None:
        """A file was read by the scan."""
        self.num_files += 1
        self.bytes_read += num_bytes


_current: ContextVar[Progress | None] = ContextVar("monarch_sync_progress", default=None)


def progress() -> Progress:
    """The one to write to: of the follower of this push, else one that has no reader."""
    return _current.get() or Progress()


@contextmanager
def followed_by(follower: Progress) -> Iterator[None]:
    """The pushes of this block, in this thread, write to ``follower``."""
    token = _current.set(follower)
    try:
        yield
    finally:
        _current.reset(token)
