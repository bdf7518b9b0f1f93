"""Ends meshes of procs that the client has dropped without ``stop()``, once nothing uses them.

Which, and when, is decided in `monarch/core/dropped.py`. A look asks all processes of the program
what they refer to, on a thread of its own. References in cycles count until Python collects them.
It does so by itself, though seldom in a large program, and when another mesh is spawned: on the
thread that spawns, so that finalizers of the user's objects never run on a thread of ours.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from monarch.core.dropped import DroppedMeshes, spread
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
    """Ends meshes that were dropped and are unused for ``seconds``; 0 for never.

    ``clock`` is for tests; each ``look`` runs on the thread that calls it.
    """

    def __init__(
        self, agent: DroppingClient, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._agent = agent
        #: How long a mesh must be unused before it is ended; 0 or less for never.
        self._seconds = seconds
        self._clock = clock
        self._rules = DroppedMeshes(seconds)
        #: The meshes that were spawned here and have not been stopped.
        self._spawned: dict[Uid, _Spawned] = {}
        #: The meshes whose objects were freed. Filled while garbage is collected, at any moment
        #: and on any thread, so it takes no lock.
        self._freed: deque[Uid] = deque()
        self._is_ticking = False
        #: Held during a look: they come one after the other.
        self._is_looking = threading.Lock()
        #: When garbage was last collected before a spawn, by the clock.
        self._collected = clock()

    def watch(
        self, owner: object, uid: Uid, name: str, procs: Sequence[Uid], stop: Callable[[], object]
    ) -> None:
        """Call ``stop``, which ends the procs, once ``owner`` was freed and nothing uses them."""
        if self._seconds <= 0 or is_keeping_all():
            return
        if self._spawned:
            self._collect_cycles()
        self._spawned[uid] = _Spawned(name, frozenset(procs), stop)
        weakref.finalize(owner, self._freed.append, uid).atexit = False
        if not self._is_ticking:
            self._is_ticking = True
            self._tick_later()

    def _collect_cycles(self) -> None:
        """Collect garbage before more is spawned, unless that was done a moment ago."""
        now = self._clock()
        if now - self._collected >= self._seconds and gc.isenabled():
            self._collected = now
            gc.collect()
            self._rules.look_again(now)

    def forget(self, uid: Uid) -> None:
        """Forget a mesh, because it was stopped."""
        if self._spawned.pop(uid, None) is not None:
            self._rules.forget(uid)

    def _tick_later(self) -> None:
        self._agent.node.loop.call_later(self._seconds / 10, self._tick)

    def _tick(self) -> None:
        if not self._spawned:
            self._is_ticking = False
            return
        self._tick_later()
        if self.note_dropped() and not self._is_looking.locked():
            threading.Thread(target=self.look, name="monarch-collect", daemon=True).start()

    def note_dropped(self) -> list[Uid]:
        """Note the meshes whose objects were freed since the last call.

        Returns the dropped meshes that ``look`` should look at now.
        """
        now = self._clock()
        while self._freed:
            uid = self._freed.popleft()
            if uid in self._spawned:
                self._rules.drop(uid, now)
        return self._rules.due(now)

    def look(self) -> list[Uid]:
        """Look at the dropped meshes that are due, and end the meshes that nothing uses.

        Returns the uids of the ended meshes.
        """
        with self._is_looking:
            due = [uid for uid in self.note_dropped() if uid in self._spawned]
            if not due:
                return []
            meshes = {uid: self._spawned[uid].procs for uid in due}
            referred = held_among(frozenset().union(*meshes.values()))
            program = self._see(meshes, referred)
            now = self._clock()
            if program is None:
                self._rules.unclear(now)
                return []
            in_use = program.in_use()
            for uid in in_use:
                self._rules.in_use(uid, now)
            unused = {uid: program.done(uid) for uid in meshes if uid not in in_use}
            ended = self._rules.ends(unused, program.holds, now)
            for uid in ended:
                mesh = self._spawned.pop(uid, None)
                if mesh is None:
                    continue  # It was stopped meanwhile, on another thread.
                _log.info(
                    "ended the procs of %s: nothing refers to them, and nothing runs there. "
                    "`stop()` ends them at once; collect_dropped_seconds=0 keeps them",
                    mesh.name,
                )
                mesh.stop()
            return ended

    def _see(
        self, meshes: Mapping[Uid, frozenset[Uid]], referred: Collection[Uid]
    ) -> Sighting | None:
        """Ask all processes what they run, and which procs of ``meshes`` they refer to.

        ``referred`` are the procs that this process refers to. Returns ``None`` if a process does
        not answer, or has messages on disk, which may refer to anything.
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
        if len(looks) < len(set(hosts)) or not all(procs.values()):
            return None
        wanted = HeldAsked(tuple(sorted(frozenset().union(*meshes.values()))))
        answers = {to.uid: held for to, held in self._ask(addresses, wanted).items()}
        if len(answers) < len(procs) or any(proc["is_spilling"] for proc in procs.values()):
            return None
        return Sighting(meshes, frozenset(referred), procs, answers)

    def _ask(self, to: Iterable[ProcAddress], request: Request[A]) -> dict[ProcAddress, A]:
        """Send ``request`` to each address. Returns the answers that come in time without error."""
        answers = {address: self._agent.node.ask(address, request) for address in to}
        responses = collect(answers, _ANSWER_SECONDS, "no answer in time")
        return {to: response.answer for to, response in responses.items() if not response.error}


class Sighting(NamedTuple):
    """What a look has seen of the dropped ``meshes``, each with the uids of its procs.

    ``referred`` are the procs that the client refers to. ``procs`` has the `live_state` of each
    proc, ``answers`` the answers to `HeldAsked`, both by uid.
    """

    meshes: Mapping[Uid, frozenset[Uid]]
    referred: frozenset[Uid]
    procs: Mapping[Uid, Mapping[str, Any]]
    answers: Mapping[Uid, HeldProcs]

    def in_use(self) -> set[Uid]:
        """Return the meshes that run something, or that something else in the program can reach."""
        dropped = frozenset().union(*self.meshes.values())
        others = (answer.held for uid, answer in self.answers.items() if uid not in dropped)
        referred = self.referred.union(*others)
        roots = [
            uid
            for uid, mesh in self.meshes.items()
            if not mesh.isdisjoint(referred) or any(map(self._is_busy, mesh))
        ]
        return spread(roots, self.holds)

    @property
    def holds(self) -> Mapping[Uid, set[Uid]]:
        """The dropped meshes that each dropped mesh refers to."""
        return {
            uid: {
                other
                for other, procs in self.meshes.items()
                if any(
                    not procs.isdisjoint(self.answers[proc].held)
                    for proc in mesh
                    if proc in self.answers
                )
            }
            for uid, mesh in self.meshes.items()
        }

    def done(self, mesh: Uid) -> Hashable:
        """Return a value that changes whenever an actor in the procs of ``mesh`` ends a call."""
        return tuple(
            (uid, actor["name"], actor["num_ended"])
            for uid in sorted(self.meshes[mesh])
            for actor in self.procs.get(uid, {}).get("actors", ())
        ) or ("nothing",)

    def _is_busy(self, uid: Uid) -> bool:
        proc = self.procs.get(uid)
        if proc is None:  # It has ended.
            return False
        is_at_rest = all(map(_rests, proc["actors"])) and not proc["calls"]
        return bool(self.answers[uid].busy) or not is_at_rest


def _rests(actor: Mapping[str, Any]) -> bool:
    is_over = actor["status"] in ("idle", "failed", "stopped")
    return is_over and not actor["queue"] and not actor["doing"]
