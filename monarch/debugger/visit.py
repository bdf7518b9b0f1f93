"""Questions to procs and host agents, without being their client, over the node's own links.

The hosts are those of the folder's allocation, if there is one. Programs are the clients that this
user runs on this machine; they are hosts too, and know all held calls of their procs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from monarch.core.rank_sets import RanksType, in_ranges, is_in, unknown_dims
from monarch.errors import MonarchError
from monarch.net.machine import user_name
from monarch.observe.visit import programs_here
from monarch.runtime.answers import Response, collect, wait_for
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.hold import HoldNote, LostHold
from monarch.wire.message import EnvSet, HoldNames, HoldsAsked, Inspect, Request

_SECONDS = 3.0
_PROGRAM_SECONDS = 0.5
NO_ANSWER = "does not answer"

A = TypeVar("A")


class NotAnswered(MonarchError):
    """A process that was asked is gone, does not answer, or has refused; the message says which."""


class SeenProc(msgspec.Struct, frozen=True):
    """A proc: its mesh's name, its rank, and where it runs.

    ``workspace`` is its host's copy of the author's folders; "" if there is none.
    """

    uid: Uid
    mesh: str
    rank: int
    host: str
    pid: int
    address: ProcAddress
    labels: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    workspace: str = ""


def chosen(procs: Sequence[SeenProc], ranks: RanksType) -> list[SeenProc]:
    """Return the procs of these ranks. Raises ``NotAnswered`` if there are none."""
    shapes = [dict(zip(proc.labels, proc.sizes, strict=True)) for proc in procs]
    missing = [unknown_dims(ranks, shape) for shape in shapes]
    if missing and all(missing):
        raise NotAnswered(f"{procs[0].mesh} has no dimension {missing[0][0]!r}, but {shapes[0]}")
    chosen_procs = [proc for proc in procs if is_in(ranks, proc.rank, proc.labels, proc.sizes)]
    if not chosen_procs:
        running = in_ranges(sorted({proc.rank for proc in procs}))
        raise NotAnswered(f"that is no rank of those that run: {running or 'none does'}")
    return chosen_procs


class Visit:
    """Asks hosts and programs; ``hosts`` returns the current addresses of host agents.

    A process that does not answer within ``seconds`` is left out.
    """

    def __init__(
        self, node: Node, hosts: Callable[[], Iterable[ProcAddress]], seconds: float = _SECONDS
    ) -> None:
        self.node = node
        self._hosts = hosts
        self._seconds = seconds
        #: The programs that were found the last time.
        self._programs: set[Uid] = set()
        #: Programs that did not answer the last time, so that they get less time.
        self._silent: set[Uid] = set()
        #: The procs that hosts have told of, by uid.
        self._met: dict[Uid, ProcAddress] = {}
        #: Held calls whose process has ended, oldest first.
        self.lost: list[LostHold] = []
        #: This console, as others see it: the user and the pid.
        self.who = f"{user_name()}:{os.getpid()}"

    def places(self) -> list[ProcAddress]:
        """Return the processes that know what runs: the hosts, and this user's programs here."""
        by_uid = {address.uid: address for address in self._hosts()}
        programs = [address for pid, address in programs_here() if pid != os.getpid()]
        self._programs = {address.uid for address in programs}
        for address in programs:
            by_uid.setdefault(address.uid, address)
        return list(by_uid.values())

    def holds(self) -> list[HoldNote]:
        """Return all held calls, by actor and rank; those whose process has ended go into
        ``lost``."""
        holds: dict[str, HoldNote] = {}
        lost: dict[str, LostHold] = {}
        for calls in self.ask_places(self.places(), HoldsAsked()):
            for uid, address in calls.procs.items():
                self._met.setdefault(uid, address)
            for hold in calls.holds:
                holds.setdefault(hold.id, hold)
            for lost_hold in calls.lost:
                lost.setdefault(lost_hold.hold.id, lost_hold)
        self.lost = sorted(lost.values(), key=lambda lost_hold: lost_hold.when)
        return sorted(holds.values(), key=lambda hold: (hold.actor, hold.rank, hold.since))

    def procs(self) -> list[SeenProc]:
        """Return all running procs, by mesh and rank."""
        procs: dict[Uid, SeenProc] = {}
        for host in self.ask_places(self.places(), Inspect()):
            for proc in host.procs:
                if proc.address is None:
                    continue
                self._met[proc.uid] = proc.address
                procs[proc.uid] = SeenProc(
                    uid=proc.uid,
                    mesh=proc.name,
                    rank=proc.rank,
                    host=host.host,
                    pid=proc.pid,
                    address=proc.address,
                    labels=proc.labels,
                    sizes=proc.sizes,
                    workspace=host.workspace,
                )
        return sorted(procs.values(), key=lambda proc: (proc.mesh, proc.rank))

    def ask_places(self, places: Iterable[ProcAddress], request: Request[A]) -> list[A]:
        """Return the answers of hosts and programs, without those that do not answer."""
        answers = self._ask_all(places, request, self._seconds).values()
        return [response.answer for response in answers if not response.error]

    def env_notes(self) -> dict[str, str]:
        """Return the variables that were set for later procs, each with a note of the user and the
        time."""
        notes_by_name: dict[str, str] = {}
        for notes in self.ask_places(self.places(), EnvSet({}, "", ())):
            notes_by_name.update(notes)
        return notes_by_name

    def ask(self, proc: Uid, request: Request[A], more_seconds: float = 0.0) -> A:
        """Return the answer of one proc, which may take ``more_seconds`` than usual.

        Raises ``NotAnswered``.
        """
        answer = self.begin(proc, request)
        if not answer.wait(self._seconds + more_seconds):
            raise NotAnswered("it does not answer")
        if answer.value.error:
            raise NotAnswered(answer.value.error)
        return answer.value.answer

    def names(self, hold: HoldNote, text: str) -> list[str]:
        """Return the names that complete ``text`` at a held call; none if it does not answer."""
        try:
            names = self.ask(hold.proc, HoldNames(hold.id, text))
        except NotAnswered:
            return []
        return list(names)

    def begin(self, proc: Uid, request: Request[A]) -> Promise[Response[A]]:
        """Send a request to a proc; return a promise of the answer, without waiting."""
        address = self._met.get(proc)
        if address is None:
            raise NotAnswered("it is not known where that runs")
        return self._request(address, request)

    def ask_many(
        self, procs: Iterable[SeenProc], request: Request[A], seconds: float | None = None
    ) -> dict[Uid, Response[A]]:
        """Return the answers of procs, by uid; those that do not answer in time have an
        ``error``."""
        seconds = self._seconds if seconds is None else seconds
        return self._ask_all([proc.address for proc in procs], request, seconds)

    def _ask_all(
        self, places: Iterable[ProcAddress], request: Request[A], seconds: float
    ) -> dict[Uid, Response[A]]:
        began = time.monotonic()
        promises = {address.uid: self._request(address, request) for address in places}
        # A program here that was silent before may be one of another version.
        silent = [promises[uid] for uid in promises if uid in self._silent]
        wait_for([promises[uid] for uid in promises if uid not in self._silent], seconds)
        wait_for(silent, began + min(seconds, _PROGRAM_SECONDS) - time.monotonic())
        answered = {uid for uid, answer in promises.items() if answer.is_set}
        self._silent -= answered
        self._silent |= self._programs & (promises.keys() - answered)
        return collect(promises, 0.0, NO_ANSWER)

    def _request(self, address: ProcAddress, request: Request[A]) -> Promise[Response[A]]:
        book = self.node.address_book
        if book.peers.get(address.uid) is None and address.urls:
            book.expect(address)
            book.peer_up(address)
        return self.node.ask(address, request)
