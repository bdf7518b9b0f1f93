"""Which meshes of procs that a program has dropped are ended, and when they are looked at.

The rules:

- A mesh is dropped when the object that owns it has gone. References may be left, anywhere.
- It is looked at once it was dropped for a while, and then again, less and less often, as long as
  it is in use. A look sees all dropped meshes, because they may refer to each other.
- Where more than four are dropped the while is a fifth, as they may fill the machine.
- A mesh is in use if something runs in it, or if a process outside of the dropped meshes refers to
  it, or a dropped mesh that is in use does.
- It is ended where two looks, half of that while apart, have found it unused, and nothing has run
  in it in between; and only together with the dropped meshes that refer to it, or after them.
- A look that did not see everything decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping

import msgspec

_LONGEST_SECONDS = 3600.0
_MANY = 5
_MANY_SHARE = 0.2


class _Dropped(msgspec.Struct):
    due: float
    wait: float
    seen: Hashable = None


class DroppedMeshes:
    """Decides when to look at meshes of procs that the program has dropped, and which to end.

    A mesh is first looked at ``seconds`` after it was dropped, or sooner if many are dropped. Times
    are seconds of any clock.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._meshes: dict[str, _Dropped] = {}

    @property
    def _wait(self) -> float:
        return self._seconds * (_MANY_SHARE if len(self._meshes) >= _MANY else 1.0)

    def drop(self, mesh: str, now: float) -> None:
        """Note that the object that owns a mesh has gone."""
        self._meshes.setdefault(mesh, _Dropped(now + self._wait, self._seconds))
        if len(self._meshes) == _MANY:
            for dropped in self._meshes.values():
                if dropped.wait == self._seconds:
                    dropped.due = min(dropped.due, now + self._wait)

    def forget(self, mesh: str) -> None:
        """Note that a mesh has ended."""
        self._meshes.pop(mesh, None)

    def due(self, now: float) -> list[str]:
        """Return all dropped meshes if it is time to look at one of them; an empty list if it is
        not.
        """
        is_due = any(mesh.due <= now for mesh in self._meshes.values())
        return list(self._meshes) if is_due else []

    def unclear(self, now: float) -> None:
        """Note that a look did not see everything. It decides nothing about the meshes that were
        due, and they are looked at again later.
        """
        for mesh in self._meshes.values():
            if mesh.due <= now:
                mesh.due = now + self._wait

    def in_use(self, mesh: str, now: float) -> None:
        """Record that a look has found a mesh in use."""
        if (dropped := self._meshes.get(mesh)) is not None:
            dropped.seen = None
            if dropped.due <= now:
                dropped.wait = min(2 * dropped.wait, _LONGEST_SECONDS)
                dropped.due = now + dropped.wait

    def look_again(self, now: float) -> None:
        """Note that garbage was collected, so that a mesh that was in use may be unused now: look
        at such meshes at once.
        """
        for dropped in self._meshes.values():
            if dropped.wait > self._seconds:
                dropped.wait, dropped.due = self._seconds, now

    def ends(
        self, unused: Mapping[str, Hashable], holds: Mapping[str, Collection[str]], now: float
    ) -> list[str]:
        """Handle the meshes that a look has found unused, and return the meshes that must end now.

        ``unused`` has for each of them a value that changes whenever something runs in it.
        ``holds`` has for each mesh the meshes that it refers to; a mesh does not end while a mesh
        that stays refers to it.
        """
        ready = [mesh for mesh, done in unused.items() if self._is_ready(mesh, done, now)]
        waiting = [mesh for mesh in unused if mesh not in ready]
        kept = spread(waiting, holds)
        ends = [mesh for mesh in ready if mesh not in kept]
        for mesh in ends:
            del self._meshes[mesh]
        return ends

    def _is_ready(self, mesh: str, done: Hashable, now: float) -> bool:
        """Return whether a mesh may end: an earlier look found it unused too, that look was long
        enough ago, and nothing has run in the mesh since.

        ``done`` is a value that changes whenever something runs in the mesh.
        """
        dropped = self._meshes.get(mesh)
        if dropped is None:
            return False
        if dropped.seen is None or dropped.seen != done:
            dropped.seen, dropped.wait, dropped.due = done, self._seconds, now + self._wait / 2
            return False
        return dropped.due <= now


def spread(roots: Iterable[str], holds: Mapping[str, Collection[str]]) -> set[str]:
    """Return the meshes that can be reached from ``roots`` by what each mesh ``holds``."""
    reached = set(roots)
    waiting = list(reached)
    while waiting:
        new = set(holds.get(waiting.pop(), ())) - reached
        reached |= new
        waiting.extend(new)
    return reached
