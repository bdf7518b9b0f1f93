"""The orders that made actors, kept for procs that are replaced by new ones.

An actor that is made again gets the arguments of the first time, as they were then: the sent bytes
are kept, not the objects, which may have changed. An order that is too large is not kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from monarch.wire.address import Uid
from monarch.wire.codec import Bytes
from monarch.wire.message import SpawnActor
from monarch.wire.payload import Borrowed, Payload

KEPT_BYTES = 16 * 2**20
"""The arguments of one mesh are kept up to this size."""


class KeptSpawn(NamedTuple):
    """How a mesh of actors was made. ``data`` is the order; ``None`` if it could not be kept, and
    then ``why_not`` says why.

    If the class may be upgraded, ``arguments`` has the arguments without the class.
    """

    mesh: Uid
    name: str
    procs: Sequence[Uid]
    make: Callable[[int], SpawnActor]
    data: Payload | None
    why_not: str
    arguments: list[bytes] | None = None


class KeptSpawns:
    """How the meshes of this process were spawned, so that actors can be made again in a new proc.

    ``is_alive(mesh, proc)`` returns whether the mesh has a member in the proc that has neither
    failed nor been stopped. Any thread may call this.
    """

    def __init__(self, is_alive: Callable[[Uid, Uid], bool]) -> None:
        self._is_alive = is_alive
        self._spawns: dict[Uid, KeptSpawn] = {}
        self._held: dict[Uid, list[KeptSpawn]] = {}
        self._lock = threading.Lock()

    def keep(
        self,
        mesh: Uid,
        name: str,
        procs: Sequence[Uid],
        make: Callable[[int], SpawnActor],
        data: Payload,
        arguments: Callable[[], list[bytes]] | None = None,
        *,
        is_lent: bool = False,
    ) -> None:
        """Keep an order. Call it when the order is sent, under the lock that keeps casts in order.

        ``is_lent``: the arguments include objects that are lent to the receivers. These objects end
        with the proc, so the order cannot be kept.
        """
        why_not = "distributed tensors are among them, which end with the proc" if is_lent else ""
        size = len(data.data) + sum(map(len, data.buffers))
        if size > KEPT_BYTES:
            why_not = f"{size} bytes, of which {KEPT_BYTES} at most are kept"
        spawn = KeptSpawn(
            mesh=mesh,
            name=name,
            procs=procs,
            make=make,
            data=None if why_not else _copied(data),
            why_not=why_not,
            arguments=None if why_not or arguments is None else arguments(),
        )
        with self._lock:
            self._spawns[mesh] = spawn

    def upgraded(self, mesh: Uid, order: Callable[[list[bytes]], Payload]) -> None:
        """Record that a mesh has a new class: replace its kept spawn order by the result of
        ``order``, which is called with the kept arguments.
        """
        with self._lock:
            spawn = self._spawns.get(mesh)
        if spawn is not None and spawn.arguments is not None:
            data = _copied(order(spawn.arguments))
            with self._lock:
                self._spawns[mesh] = spawn._replace(data=data)

    def forget(self, mesh: Uid) -> None:
        with self._lock:
            self._spawns.pop(mesh, None)

    def on(self, proc: Uid) -> list[KeptSpawn]:
        """Return the orders of the actors that live in a proc, in the order in which they were
        made."""
        with self._lock:
            spawns = [spawn for spawn in self._spawns.values() if proc in spawn.procs]
        return [spawn for spawn in spawns if self._is_alive(spawn.mesh, proc)]

    def sent_whole(self) -> set[str]:
        """Return the qualified names of the classes, of living actors, that were sent by value."""
        with self._lock:
            spawns = [spawn for spawn in self._spawns.values() if spawn.arguments is not None]
        return {
            spawn.make(0).class_name
            for spawn in spawns
            if any(self._is_alive(spawn.mesh, proc) for proc in spawn.procs)
        }

    def hold(self, proc: Uid) -> None:
        """Note which actors of a proc must be made again in a new proc.

        They are the actors that were ordered before this call.
        """
        self._held[proc] = self.on(proc)

    def release(self, proc: Uid) -> None:
        self._held.pop(proc, None)

    def again(self, proc: Uid) -> Iterator[tuple[SpawnActor, Payload]]:
        """Yield the orders that make the actors of a replaced proc again. Orders that could not be
        kept are left out.
        """
        spawns = self._held.pop(proc, None)
        for spawn in self.on(proc) if spawns is None else spawns:
            if spawn.data is not None and self._is_alive(spawn.mesh, proc):
                yield spawn.make(spawn.procs.index(proc)), spawn.data


def _copied(data: Payload) -> Payload:
    """Return a copy of the payload, which later changes of the sender's objects do not affect."""
    buffers: Sequence[Bytes] = data.buffers
    if isinstance(buffers, Borrowed):
        buffers = list(buffers.copied())
    return Payload(data.data, buffers)
