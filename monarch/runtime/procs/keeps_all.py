"""The owner of meshes that ends none of those that are dropped: any process but the client."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from monarch.wire.address import Uid

_runs: list[object] = []


@contextlib.contextmanager
def keeping_all() -> Iterator[None]:
    """While a run is under way: what it spawns is the run's, which ends what it has."""
    run = object()
    _runs.append(run)
    try:
        yield
    finally:
        _runs.remove(run)


def is_keeping_all() -> bool:
    """Whether a run is under way."""
    return bool(_runs)


class KeepsAll:
    """`MeshCollector` of `monarch/runtime/dropped_meshes.py` is the client's."""

    def watch(
        self, owner: object, uid: Uid, name: str, procs: Sequence[Uid], stop: Callable[[], object]
    ) -> None:
        """A mesh was spawned."""

    def forget(self, uid: Uid) -> None:
        """A mesh was stopped."""
