"""Ends meshes of procs that the client has dropped without ``stop()``, once nothing uses them.

`monarch/core/dropped.py` decides which meshes, and when. A look asks all processes of the program
which meshes they refer to, on a thread of its own.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from monarch.core.dropped import DroppedMeshes
from monarch.runtime.answers import collect
from monarch.runtime.held import held_among
from monarch.runtime.node import Node
from monarch.runtime.procs.keeps_all import KeepsAll, is_keeping_all
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import HeldAsked, HeldProcs, LookAtHost, Request

A = TypeVar("A")

_ANSWER_SECONDS = 10.0
_log = logging.getLogger("monarch.host")


class DroppingClient(Protocol):
    """The parts of the client that its collector uses."""

    node: Node
    links: dict[str, Any]

    @property
    def cells(self) -> Sequence[Any]: ...


class _Spawned(NamedTuple):
    name: str
    procs: frozenset[Uid]
    stop: Callable[[], object]


class MeshCollector(KeepsAll):
    """Ends dropped meshes. ``clock`` and ``seconds`` are for tests; each ``look`` runs on the
    calling thread."""

    def __init__(
        self, agent: DroppingClient, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._agent = agent
        self._seconds = seconds
        self._clock = clock
        self._rules = DroppedMeshes(seconds)
        self._spawned: dict[Uid, _Spawned] = {}
        # Filled while garbage is collected, at any moment and on any thread: it takes no lock.
        self._gone: deque[Uid] = deque()
        self._is_ticking = False
        self._is_looking = threading.Lock()

    def watch(
        self, owner: object, uid: Uid, name: str, procs: Sequence[Uid], stop: Callable[[], object]
    ) -> None:
        """Watch a mesh; ``owner`` is the object that owns it, and ``stop`` ends its procs."""
        if self._seconds <= 0 or is_keeping_all():
            return
        self._spawned[uid] = _Spawned(name, frozenset(procs), stop)
        weakref.finalize(owner, self._gone.append, uid).atexit = False
        if not self._is_ticking:
            self._is_ticking = True
            self._tick_later()

    def forget(self, uid: Uid) -> None:
        """Forget a mesh, which was stopped."""
        if self._spawned.pop(uid, None) is not None:
            self._rules.forget(uid)

    def _tick_later(self) -> None:
        self._agent.node.loop.call_later(self._seconds / 2, self._tick)

    def _tick(self) -> None:
        if not self._spawned:
            self._is_ticking = False
            return
        self._tick_later()
        if self.note_dropped() and not self._is_looking.locked():
            threading.Thread(target=self.look, name="monarch-collect", daemon=True).start()

    def note_dropped(self) -> list[Uid]:
        """Note the meshes whose owning objects are gone; return the meshes that must be looked
        at."""
        now = self._clock()
        while self._gone:
            uid = self._gone.popleft()
            if uid in self._spawned:
                self._rules.drop(uid, now)
        return self._rules.due(now)

    def look(self) -> list[Uid]:
        """Look at the meshes whose time has come; return the meshes that were ended."""
        with self._is_looking:
            due = {uid: self._spawned[uid] for uid in self.note_dropped() if uid in self._spawned}
            if not due:
                return []
            if gc.isenabled():
                gc.collect()  # References in cycles are none.
            held = held_among(frozenset().union(*(mesh.procs for mesh in due.values())))
            now = self._clock()
            for uid in [uid for uid, mesh in due.items() if mesh.procs & held]:
                del due[uid]
                self._rules.in_use(uid, now)
            return self._look_elsewhere(due) if due else []

    def _look_elsewhere(self, due: Mapping[Uid, _Spawned]) -> list[Uid]:
        program = self._see(frozenset().union(*(mesh.procs for mesh in due.values())))
        now = self._clock()
        ended = []
        for uid, mesh in due.items():
            done = program.use_of(mesh.procs) if program is not None else None
            if done is None:
                self._rules.unclear(uid, now)
            elif done is IN_USE:
                self._rules.in_use(uid, now)
            elif self._rules.unused(uid, done, now):
                del self._spawned[uid]
                ended.append(uid)
                _log.info(
                    "ended the procs of %s: nothing refers to them, and nothing runs there. "
                    "`stop()` ends them at once; collect_dropped_seconds=0 keeps them",
                    mesh.name,
                )
                mesh.stop()
        return ended

    def _see(self, asked: frozenset[Uid]) -> Sighting | None:
        """Ask all processes what they run and which of ``asked`` they refer to; ``None`` if one
        does not answer.
        """
        links = [link for link in self._agent.links.values() if not link.is_lost]
        hosts = [self._agent.node.address, *(link.address for link in links)]
        looks = self._ask(hosts, LookAtHost())
        procs: dict[Uid, Mapping[str, Any]] = {}
        addresses: list[ProcAddress] = []
        for look in looks.values():
            for proc in look.state.procs:
                procs[proc.uid] = look.seen[proc.uid][1]
                if proc.address is not None:
                    addresses.append(proc.address)
        # One that does not answer says nothing of itself.
        if len(looks) < len(set(hosts)) or not all(procs.values()):
            return None
        told = self._ask(addresses, HeldAsked(tuple(sorted(asked))))
        answers = {address.uid: held for address, held in told.items()}
        if len(answers) < len(procs) or any(cell.num_waiting for cell in self._agent.cells):
            return None
        return Sighting(procs, answers)

    def _ask(self, to: Iterable[ProcAddress], request: Request[A]) -> dict[ProcAddress, A]:
        """Send ``request`` to each address; return the answers that arrive in time without an
        error."""
        asked = {address: self._agent.node.ask(address, request) for address in to}
        responses = collect(asked, _ANSWER_SECONDS, "no answer in time")
        return {address: one.answer for address, one in responses.items() if not one.error}


IN_USE = object()


class Sighting(NamedTuple):
    """The result of a look. ``procs`` has the `live_state` of each proc, ``answers`` the answers to
    `HeldAsked`, both by uid."""

    procs: Mapping[Uid, Mapping[str, Any]]
    answers: Mapping[Uid, HeldProcs]

    def use_of(self, mesh: frozenset[Uid]) -> Hashable:
        """Return how much has run in an unused mesh so far; ``IN_USE`` if it is in use, and
        ``None`` if that is unknown.
        """
        for uid, proc in self.procs.items():
            if uid not in mesh:
                if not mesh.isdisjoint(self.answers[uid].held):
                    return IN_USE
                # What has not been taken yet may refer to anything.
                if proc["is_spilling"] or any(actor["queue"] for actor in proc["actors"]):
                    return None
            elif self.answers[uid].busy or proc["calls"] or not all(map(_rests, proc["actors"])):
                return IN_USE
        return tuple(
            (uid, actor["name"], actor["num_ended"])
            for uid in sorted(mesh)
            for actor in self.procs.get(uid, {}).get("actors", ())
        ) or ("nothing",)


def _rests(actor: Mapping[str, Any]) -> bool:
    is_over = actor["status"] in ("idle", "failed", "stopped")
    return is_over and not actor["queue"] and not actor["doing"]
