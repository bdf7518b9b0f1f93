"""Which meshes of procs that a program has dropped are ended, and when they are looked at.

The rules:

- A mesh is dropped when the object that owns it has gone. References may be left, anywhere.
- It is looked at once it was dropped for a while; and then again, later each time, as long as
  something refers to it or runs in it.
- It is ended where two looks, a while apart, have found nothing that refers to it, nothing that
  runs in it, and that nothing has run in it in between.
- A look that did not see everything decides nothing.
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
    """``seconds`` is the while. Times are seconds of any clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._meshes: dict[str, _Dropped] = {}

    def drop(self, mesh: str, now: float) -> None:
        """The owning object of a mesh has gone."""
        self._meshes.setdefault(mesh, _Dropped(now + self._seconds, self._seconds))

    def forget(self, mesh: str) -> None:
        """A mesh has ended."""
        self._meshes.pop(mesh, None)

    def due(self, now: float) -> list[str]:
        """The meshes that must be looked at now."""
        return [uid for uid, mesh in self._meshes.items() if mesh.due <= now]

    def unclear(self, mesh: str, now: float) -> None:
        """A look at it did not see everything."""
        if (known := self._meshes.get(mesh)) is not None:
            known.due = now + self._seconds

    def in_use(self, mesh: str, now: float) -> None:
        """Record that a process refers to the mesh, or that an actor runs in it."""
        if (known := self._meshes.get(mesh)) is not None:
            known.seen = None
            known.wait = min(2 * known.wait, _LONGEST_SECONDS)
            known.due = now + known.wait

    def look_again(self, now: float) -> None:
        """Garbage was collected: what was in use may no longer be."""
        for known in self._meshes.values():
            if known.wait > self._seconds:
                known.wait, known.due = self._seconds, now

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
