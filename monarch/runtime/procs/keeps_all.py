"""The owner of meshes that ends none of those that are dropped: any process but the client."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monarch.wire.address import Uid


class KeepsAll:
    """`MeshCollector` of `monarch/runtime/dropped_meshes.py` is the client's."""

    def watch(
        self, owner: object, uid: Uid, name: str, procs: Sequence[Uid], stop: Callable[[], object]
    ) -> None:
        """A mesh was spawned."""

    def forget(self, uid: Uid) -> None:
        """A mesh was stopped."""

    def keep_all(self) -> None:
        """End none from here on."""
