"""When a mesh of procs that a program has dropped is ended.

The rules:

- A mesh is dropped when the object that owns it is gone. References to it may remain anywhere.
- Some time after it was dropped, every process is asked whether it refers to the mesh or runs
  something in it; and then again, later each time, as long as one does.
- It is ended if two such looks, some time apart, find no reference to it and nothing that runs in
  it, and nothing has run in it in between.
- A look that could not ask all processes decides nothing.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

_LONGEST_SECONDS = 3600.0


class _Dropped(msgspec.Struct):
    due: float
    wait: float
    seen: Hashable = None


class DroppedMeshes:
    """The dropped meshes of a program. ``seconds`` is the time before the first look. Times are
    seconds of any clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._meshes: dict[str, _Dropped] = {}

    def drop(self, mesh: str, now: float) -> None:
        """Note that the owning object of a mesh is gone."""
        self._meshes.setdefault(mesh, _Dropped(now + self._seconds, self._seconds))

    def forget(self, mesh: str) -> None:
        """Note that a mesh has ended."""
        self._meshes.pop(mesh, None)

    def due(self, now: float) -> list[str]:
        """Return the meshes that must be looked at now."""
        return [uid for uid, mesh in self._meshes.items() if mesh.due <= now]

    def unclear(self, mesh: str, now: float) -> None:
        """Note that a look at the mesh could not ask all processes."""
        if (known := self._meshes.get(mesh)) is not None:
            known.due = now + self._seconds

    def in_use(self, mesh: str, now: float) -> None:
        """Record that a process refers to the mesh, or that an actor runs in it."""
        if (known := self._meshes.get(mesh)) is not None:
            known.seen = None
            known.wait = min(2 * known.wait, _LONGEST_SECONDS)
            known.due = now + known.wait

    def unused(self, mesh: str, done: Hashable, now: float) -> bool:
        """Record that nothing refers to the mesh and nothing runs in it; return whether to end it.
        ``done`` is what has run in it so far.
        """
        known = self._meshes.get(mesh)
        if known is None:
            return False
        if known.seen is not None and known.seen == done:
            del self._meshes[mesh]
            return True
        known.seen, known.wait, known.due = done, self._seconds, now + self._seconds
        return False
