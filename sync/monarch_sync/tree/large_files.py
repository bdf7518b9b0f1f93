"""Large files that a push is about to send, for a caller that wants to be asked before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from monarch_sync.tree.entry import Entry

MIN_BYTES = 50_000_000  # A push should not send files of this size unasked.

Review = Callable[[Sequence[Entry]], None]
"""Is called with the files that would be sent whole, in the order of their paths. If it raises an
error, the push ends, and nothing has been changed."""

_reviewers: ContextVar[Review | None] = ContextVar("monarch_sync_large_files", default=None)


def review(files: Iterable[Entry]) -> None:
    """Call the reviewer, if there is one, with the large files that are about to be sent. Raises
    what the reviewer raises."""
    by_path = {entry.path: entry for entry in files}
    reviewer = _reviewers.get()
    if by_path and reviewer is not None:
        reviewer([by_path[path] for path in sorted(by_path)])


@contextmanager
def reviewed_by(reviewer: Review) -> Iterator[None]:
    """Have the pushes of this block, in this thread, show their large files to ``reviewer``
    first."""
    token = _reviewers.set(reviewer)
    try:
        yield
    finally:
        _reviewers.reset(token)
