"""Questions to procs and hosts, without being their client, over the node's own links.

Hosts are host agents, and programs: a program is the host of the procs that it spawns on its own
machine, and knows the held calls of all its procs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from monarch.core.rank_sets import RanksType, in_ranges, is_in, unknown_dims
from monarch.errors import MonarchError
from monarch.net.machine import user_name
from monarch.runtime.answers import Response, collect
from monarch.runtime.hosts.asking import ASK_SECONDS, responses_of
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.hold import HoldNote, LostHold
from monarch.wire.message import (
    EnvSet,
    HoldNames,
    HoldOutput,
    HoldsAsked,
    HoldText,
    Inspect,
    Request,
)

_SECONDS = 3.0
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
    """Asks hosts and procs; ``hosts`` returns the current addresses of hosts, by name.

    Each question waits up to ``host_seconds`` for the answers of hosts, and up to ``seconds`` for
    those of procs.
    """

    names_seconds = 0.5  # A line that was typed is read only after the completion of its words.

    def __init__(
        self,
        node: Node,
        hosts: Callable[[], Mapping[str, ProcAddress]],
        seconds: float = _SECONDS,
        host_seconds: float = ASK_SECONDS,
    ) -> None:
        self.node = node
        self.hosts = hosts
        self._seconds = seconds
        self._host_seconds = host_seconds
        #: The answers to the last question to hosts, by name. Some may still come.
        self._last_answers: Mapping[str, Promise[Response[Any]]] = {}
        #: Why hosts did not answer, by name, until `silence` returns it.
        self._silent: dict[str, str] = {}
        #: The procs that hosts have told of, by uid.
        self._met: dict[Uid, ProcAddress] = {}
        #: Held calls whose process has ended, oldest first.
        self.lost: list[LostHold] = []
        #: This console, as others see it: the user and the pid.
        self.who = f"{user_name()}:{os.getpid()}"

    def ask_hosts(self, request: Request[A]) -> list[A]:
        """Return the answers of the hosts that answer; `silence` names the others.

        A host that still owes the answer to the question before this one gets only a short wait.
        Once that answer has come, however late, the host gets its full time again.
        """
        hosts = self.hosts()
        silent = [name for name, answer in self._last_answers.items() if not answer.is_set]
        for name, address in hosts.items():
            if name in silent:
                # Another agent may listen there now, to which this process is a stranger.
                self._connect(address)
            else:
                self.node.address_book.reach(address)
        answers = {name: self.node.ask(address, request) for name, address in hosts.items()}
        responses = responses_of(
            self.node, hosts, answers, silent=silent, seconds=self._host_seconds
        )
        self._last_answers = answers
        self._silent |= {name: got.error for name, got in responses.items() if got.error}
        return [response.answer for response in responses.values() if not response.error]

    def silence(self) -> list[str]:
        """Return which hosts did not answer a question since the last call, and why, a line
        each."""
        lines = [f"{name}: {reason}" for name, reason in self._silent.items()]
        self._silent = {}
        return lines

    def holds(self) -> list[HoldNote]:
        """Return all held calls, by actor and rank; those whose process has ended go into
        ``lost``."""
        holds: dict[str, HoldNote] = {}
        lost: dict[str, LostHold] = {}
        for calls in self.ask_hosts(HoldsAsked()):
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
        for host in self.ask_hosts(Inspect()):
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

    def env_notes(self) -> dict[str, str]:
        """Return the variables that were set for later procs, each with a note of the user and the
        time."""
        notes_by_name: dict[str, str] = {}
        for notes in self.ask_hosts(EnvSet({}, "", ())):
            notes_by_name.update(notes)
        return notes_by_name

    def ask(self, proc: Uid, request: Request[A], more_seconds: float = 0.0) -> A:
        """Return the answer of one proc. It may take ``more_seconds`` longer than usual.

        Raises ``NotAnswered`` if the proc is unknown or gone, or does not answer in time.
        """
        answer = self.begin(proc, request)
        if not answer.wait(self._seconds + more_seconds):
            raise NotAnswered("it does not answer")
        if answer.value.error:
            raise NotAnswered(answer.value.error)
        return answer.value.answer

    def ask_holds(self, holds: Iterable[HoldNote]) -> dict[str, Response[HoldOutput]]:
        """Return the output so far of held calls, by their ids; those that do not answer in time
        have an ``error``."""
        answers = {
            hold.id: self.begin(hold.proc, HoldText(hold.id, -1, was_waiting=False, seconds=0.0))
            for hold in holds
        }
        return collect(answers, self._seconds, NO_ANSWER)

    def names(self, hold: HoldNote, text: str) -> list[str]:
        """Return the names that complete ``text`` at a held call; none if it does not answer."""
        answer = self.begin(hold.proc, HoldNames(hold.id, text))
        answer.wait(self.names_seconds)
        return list(answer.value.or_else(())) if answer.is_set else []

    def begin(self, proc: Uid, request: Request[A]) -> Promise[Response[A]]:
        """Send a request to a proc; return a promise of the answer, without waiting.

        Raises ``NotAnswered`` if it is not known where the proc runs.
        """
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
        answers = {proc.uid: self._request(proc.address, request) for proc in procs}
        return collect(answers, seconds, NO_ANSWER)

    def _request(self, address: ProcAddress, request: Request[A]) -> Promise[Response[A]]:
        if self.node.address_book.peers.get(address.uid) is None and address.urls:
            self._connect(address)
        return self.node.ask(address, request)

    def _connect(self, address: ProcAddress) -> None:
        """Connect to a process; an earlier connection to it ends."""
        self.node.address_book.expect(address)
        self.node.address_book.peer_up(address)
