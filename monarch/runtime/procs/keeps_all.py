"""The collector of dropped meshes in processes other than the client: it ends none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from monarch.wire.address import Uid

_runs: list[object] = []


@contextlib.contextmanager
def keeping_all() -> Iterator[None]:
    """Keep all dropped meshes during this block.

    A run uses it, because a run ends the meshes that it has spawned.
    """
    run = object()
    _runs.append(run)
    try:
        yield
    finally:
        _runs.remove(run)


def is_keeping_all() -> bool:
    """Return whether a run is in progress."""
    return bool(_runs)


class KeepsAll:
    """Has the methods of `MeshCollector` (`monarch/runtime/dropped_meshes.py`), but does nothing.
    Procs use it; the client has the real collector.
    """

    def watch(
        self, owner: object, uid: Uid, name: str, procs: Sequence[Uid], stop: Callable[[], object]
    ) -> None:
        """Called when a mesh was spawned; does nothing."""

    def forget(self, uid: Uid) -> None:
        """Called when a mesh was stopped; does nothing."""
