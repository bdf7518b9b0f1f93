"""A visit to the hosts of a mesh: they are asked, over the links that there are, and nothing else.

A visitor is no client: it owns nothing, and what it asks keeps no actor waiting.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import msgspec

from monarch.config import runtime_dir
from monarch.net.machine import machine_id
from monarch.observe.stacks import ProcStacks
from monarch.runtime.answers import Response
from monarch.runtime.client_agent import ClientAgent
from monarch.runtime.hosts.asking import NOBODY_THERE, closed_of
from monarch.runtime.node import Node
from monarch.runtime.observe.drain import pack_lines, row_objects, unpack_rows
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress
from monarch.wire.message import (
    AnyMessage,
    AskClock,
    DrainHost,
    DrainProc,
    KeepRows,
    LookAtHost,
    LookAtProc,
    ProfileProc,
    PySpyAsked,
    StacksAsked,
)

_FIRST_SECONDS = 0.15
_ANSWER_SECONDS = 5.0
_CLIENT_SECONDS = 1.0
_NUM_PINGS = 8
_STACKS_SECONDS = 3.0
_PY_SPY_SECONDS = 30.0


class Ping(NamedTuple):
    """Sent and answered by our clock, with what theirs said in between; nanoseconds."""

    sent: int
    theirs: int
    answered: int

    @property
    def round_trip(self) -> int:
        return self.answered - self.sent


class ClockOffset(NamedTuple):
    """Add ``offset`` to their time for ours; it is wrong by ``error`` at most. Nanoseconds."""

    offset: int
    error: int


SAME = ClockOffset(0, 0)
"""Of processes of one machine: they share the clock."""


def offset_from(pings: Iterable[Ping]) -> ClockOffset | None:
    """How far two clocks are apart, by the ping with the shortest round trip (Cristian).

    ``None`` where there is none."""
    best = min(pings, key=lambda ping: ping.round_trip, default=None)
    if best is None:
        return None
    middle = best.sent + best.round_trip // 2
    return ClockOffset(middle - best.theirs, (best.round_trip + 1) // 2)


@dataclass
class Drained:
    """``rows`` by process, as it has packed them (`runtime.observe.drain`); ``about`` are lines on
    processes and clocks. ``silent`` names what gave none, and why."""

    rows: list[tuple[str, bytes]] = field(default_factory=list)
    about: list[bytes] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)

    @property
    def packed(self) -> list[bytes]:
        """All of it as packed lines."""
        lines = [pack_lines(row_objects(uid, unpack_rows(rows))) for uid, rows in self.rows]
        return [*lines, *self.about]


def hosts_of(agent: ClientAgent) -> dict[str, ProcAddress]:
    """All hosts that a program runs on: those that it is attached to, and the one inside it."""
    linked = {url: link.address for url, link in agent.links.items() if not link.is_lost}
    return {"this program": agent.node.address, **linked}


def program_at(pid: int) -> ProcAddress | None:
    """The program of ours with that pid on this machine, if it is one that can be asked."""
    base = runtime_dir()
    for name in os.listdir(base):
        machine, _, rest = name.partition("-")
        number, _, uid = rest.partition("-")
        if machine == machine_id()[:6] and number == str(pid) and uid:
            return ProcAddress(uid, (f"ipc://{base}/{name}/{uid}",), machine_id())
    return None


def procs_of(
    looks: Iterable[Mapping[str, Any]], uids: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """The procs of `MeshVisit.look`, or those with ``uids``, each with the ``url`` of its host."""
    return [
        {**proc, "url": look["url"]}
        for look in looks
        for proc in look.get("procs", ())
        if uids is None or proc["uid"] in uids
    ]


class MeshVisit:
    """``hosts`` are the addresses of host agents, by URL or by another name that people know."""

    def __init__(self, node: Node, hosts: Mapping[str, ProcAddress]) -> None:
        self._node = node
        self._hosts: dict[str, ProcAddress] = {}
        self._known: dict[str, ProcAddress] = {}
        self._clocks: dict[str, ClockOffset] = {}
        self.go_to(hosts)

    def go_to(self, hosts: Mapping[str, ProcAddress]) -> None:
        """Asks these from now on. From any thread; hosts that were asked already are waited for."""
        node, before = self._node, dict(self._known)
        self._known.update(hosts)
        self._hosts = dict(hosts)
        for url, address in hosts.items():
            is_new = before.get(url) != address and address.uid != node.uid
            if is_new and node.failure_of(address.uid) is None:
                node.address_book.reach(address)

    def look(self, *, flight: bool = False) -> list[dict[str, Any]]:
        """The state of each host at this moment, as `runtime.observe.host_desk` has it, or an
        ``error``; each with its ``url``, its ``offset`` from our clock, and the ``client_state`` of
        the program that it serves. ``flight``: with torch's last collectives."""
        uid = self._node.uid
        answers = self._ask_hosts(lambda port: LookAtHost(port, uid, flight))
        looks = []
        clients: dict[str, dict[str, Any]] = {}
        for url, response in answers.items():
            body: dict[str, Any] = (
                {"error": response.error} if response.error else dict(response.body)
            )
            body["url"] = url
            client = _address(body.get("client"))
            if client is not None and client.uid not in clients:
                asked = self._ask(client, lambda port: LookAtProc(port, uid), _CLIENT_SECONDS)
                clients[client.uid] = asked.body
            body["client_state"] = clients.get(client.uid) if client is not None else None
            if not response.error:
                body["offset"], body["clock_error"] = self._clock(url)
            looks.append(body)
        return looks

    def drain(self) -> Drained:
        """The last events of all processes: the procs, their hosts, and their client."""
        found = Drained()
        clients: set[str] = set()
        for url, response in self._ask_hosts(lambda port: DrainHost(port, self._node.uid)).items():
            if response.error:
                found.silent.append(f"{url}: {response.error}")
                continue
            body = response.body
            found.rows += [(uid, bytes(rows)) for uid, rows in body.get("rows", ())]
            found.about.append(pack_lines([*body.get("about", ()), self._clock_row(url, body)]))
            found.silent += [f"{label}: no answer in time" for label in body.get("silent", ())]
            client = _address(body.get("client"))
            if client is not None and client.uid not in clients:
                clients.add(client.uid)
                self._drain_client(client, found)
        return found

    def _drain_client(self, client: ProcAddress, found: Drained) -> None:
        asked = self._ask(client, lambda port: DrainProc(port, self._node.uid), _CLIENT_SECONDS)
        now = time.monotonic_ns()
        about = {
            "k": "proc", "p": client.uid, "t": now, "offset": time.time_ns() - now,
            "name": "client", "mesh": "", "rank": 0, "life": 0,
        }  # fmt: skip
        found.about.append(pack_lines([about]))
        found.rows.append((client.uid, bytes(asked.body.get("rows", b""))))

    def keep(self, seconds: float) -> None:
        """Have the hosts keep the rows of their procs so long, so that dead ones' are there."""
        self._ask_hosts(lambda port: KeepRows(seconds, port, self._node.uid))

    def profile(self, procs: Sequence[ProcAddress], seconds: float) -> dict[str, tuple[bytes, str]]:
        """torch's trace of each of ``procs``, by uid, packed by zstd; or why there is none."""
        uid = self._node.uid
        asked = {
            proc.uid: self._node.request(proc, lambda port: ProfileProc(seconds, port, uid))
            for proc in procs
        }
        deadline = time.monotonic() + seconds + 60.0
        found = {}
        for name, promise in asked.items():
            response = _outcome(promise, deadline, "no answer in time")
            found[name] = bytes(response.body.get("trace", b"")), response.error
        return found

    def stacks(self, procs: Iterable[Mapping[str, Any]]) -> list[ProcStacks]:
        """Where the actors and threads of each of ``procs`` are (see `procs_of`)."""
        uid = self._node.uid
        asked = [
            (proc, self._node.request(address, lambda port: StacksAsked(False, port, uid)))
            for proc in procs
            if (address := _address(proc.get("address"))) is not None
        ]
        deadline = time.monotonic() + _STACKS_SECONDS
        found = []
        for proc, promise in asked:
            told = _outcome(promise, deadline, "does not answer")
            answer = {"error": told.error} if told.error else told.body
            found.append(ProcStacks(proc["uid"], proc["name"], proc["rank"], proc["pid"], answer))
        return found

    def py_spy(self, procs: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
        """The stacks of each of ``procs`` that py-spy reads, by uid: its JSON, or why there is
        none."""
        by_host: dict[str, list[str]] = defaultdict(list)
        for proc in procs:
            by_host[proc["url"]].append(proc["uid"])
        uid = self._node.uid
        asked = {}
        for url, uids in by_host.items():
            make = partial(_py_spy_asked, tuple(uids), uid)
            asked[url] = self._node.request(self._known[url], make)
        deadline = time.monotonic() + _PY_SPY_SECONDS
        found: dict[str, tuple[str, str]] = {}
        for url, promise in asked.items():
            told = _outcome(promise, deadline, "no answer in time")
            dumps, errors = told.body.get("dumps", {}), told.body.get("errors", {})
            for name in by_host[url]:
                found[name] = dumps.get(name, ""), errors.get(name, told.error)
        return found

    def _clock_row(self, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """From the clock of a host to the time since 1970 of this machine."""
        offset, error = self._clock(url)
        epoch = time.time_ns() - time.monotonic_ns()
        return {"k": "clock", "host": body.get("host"), "offset": offset + epoch, "run": error}

    def _clock(self, url: str) -> ClockOffset:
        if self._known[url].machine == self._node.address.machine:
            return SAME
        if url not in self._clocks:
            pings = [self._ping(url) for _ in range(_NUM_PINGS)]
            found = offset_from(ping for ping in pings if ping is not None)
            self._clocks[url] = found or SAME
        return self._clocks[url]

    def _ping(self, url: str) -> Ping | None:
        sent = time.monotonic_ns()
        asked = self._ask(
            self._known[url], lambda port: AskClock(port, self._node.uid), _CLIENT_SECONDS
        )
        answered = time.monotonic_ns()
        theirs = asked.body.get("now")
        return Ping(sent, theirs, answered) if isinstance(theirs, int) else None

    def _ask(self, to: ProcAddress, make: Callable[[int], AnyMessage], seconds: float) -> Response:
        promise = self._node.request(to, make)
        return _outcome(promise, time.monotonic() + seconds, "no answer in time")

    def _ask_hosts(self, make: Callable[[int], AnyMessage]) -> dict[str, Response]:
        """However many do not answer, it takes no longer than one; less where none listens."""
        began = time.monotonic()
        asked = {url: self._node.request(to, make) for url, to in self._hosts.items()}
        _wait(asked.values(), began + _FIRST_SECONDS)
        late = [url for url, promise in asked.items() if not promise.is_set and "://" in url]
        closed = closed_of(late, self._node) if late else set()
        found = {}
        for url, promise in asked.items():
            if url in closed and not promise.is_set:
                found[url] = Response({}, NOBODY_THERE)
            else:
                found[url] = _outcome(promise, began + _ANSWER_SECONDS, "no answer in time")
        return found


def _py_spy_asked(procs: tuple[str, ...], sender: str, port: int) -> AnyMessage:
    return PySpyAsked(procs, False, port, sender)


def _outcome(promise: Promise[Response], deadline: float, late: str) -> Response:
    promise.wait(max(0.0, deadline - time.monotonic()))
    return promise.value if promise.is_set else Response({}, late)


def _wait(promises: Iterable[Promise[Response]], deadline: float) -> None:
    for promise in promises:
        promise.wait(max(0.0, deadline - time.monotonic()))


def _address(found: Any) -> ProcAddress | None:
    """An address out of a body, where addresses are lists."""
    return msgspec.convert(found, ProcAddress) if found else None
