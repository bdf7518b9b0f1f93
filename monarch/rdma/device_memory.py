"""Memory of a GPU as memory of this host: staged through pinned memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from monarch.rdma.gpu import gpu
from monarch.rdma.layout import Run, at

if TYPE_CHECKING:
    from monarch.rdma.registry import Registration


@contextlib.contextmanager
def on_host(
    found: Registration, held: object, start: int, stop: int, *, is_read: bool, is_written: bool
) -> Iterator[Sequence[Run]]:
    """Runs of this host's memory with the bytes ``start`` to ``stop`` of a registration.

    They are the memory itself, or a pinned copy of it, which is copied back if ``is_written``.
    """
    runs = list(at(found.address, found.layout.runs(start, stop)))
    with as_host_memory(found, held, runs, is_read=is_read, is_written=is_written) as there:
        yield there


@contextlib.contextmanager
def as_host_memory(
    found: Registration, held: object, runs: Sequence[Run], *, is_read: bool, is_written: bool
) -> Iterator[Sequence[Run]]:
    """The same for runs of a registration by their addresses."""
    if found.device == "cpu":
        yield runs
        return
    with staged(held, runs, is_read=is_read, is_written=is_written) as there:
        yield there


@contextlib.contextmanager
def staged(
    storage: Any, runs: Sequence[Run], *, is_read: bool, is_written: bool
) -> Iterator[Sequence[Run]]:
    """A copy in pinned memory of runs of a device's ``storage``, as one run.

    ``is_read``: it begins with what they hold; ``is_written``: they get what it ends with.
    """
    total = sum(size for _, size in runs)
    here, address = gpu().pinned(total)
    if is_read:
        gpu().copy(storage, runs, here, is_read=True)
    yield [(address, total)]
    if is_written:
        gpu().copy(storage, runs, here, is_read=False)
