"""Memory of a GPU, for ways that reach memory of the host only: staged through pinned memory.

Nothing here names CUDA's own API: torch's copies do the work, on the current stream, and are
waited for.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

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
    torch = sys.modules["torch"]
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    base = storage.data_ptr()
    parts = [whole[address - base : address - base + size] for address, size in runs]
    total = sum(size for _, size in runs)
    copy = torch.empty(total, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    pieces = copy.split([size for _, size in runs])
    if is_read:
        for piece, part in zip(pieces, parts, strict=True):
            piece.copy_(part, non_blocking=True)
        _wait(torch, storage)
    yield [(copy.data_ptr(), total)]
    if is_written:
        for piece, part in zip(pieces, parts, strict=True):
            part.copy_(piece, non_blocking=True)
        _wait(torch, storage)


def _wait(torch: Any, storage: Any) -> None:
    if storage.device.type == "cuda":
        torch.cuda.current_stream(storage.device).synchronize()
