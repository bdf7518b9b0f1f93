"""A visit to the hosts of a mesh: asks them questions, over existing links.

A visitor is no client: it owns nothing, and its questions block no actor.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgspec

from monarch.config import runtime_dir
from monarch.net.machine import machine_id
from monarch.observe.stacks import ProcStacks
from monarch.runtime.answers import Response, collect
from monarch.runtime.client_agent import ClientAgent
from monarch.runtime.ends.process_start import is_there
from monarch.runtime.hosts.asking import ASK_SECONDS, ask_hosts
from monarch.runtime.node import Node
from monarch.runtime.observe.drain import pack_lines, row_objects, unpack_rows
from monarch.wire.address import ProcAddress
from monarch.wire.message import (
    AskClock,
    DrainHost,
    DrainProc,
    HostLook,
    KeepRows,
    LookAtHost,
    LookAtProc,
    ProfileProc,
    PySpyAsked,
    PySpyDumps,
    Request,
    StacksAsked,
)

A = TypeVar("A")
_LATE = "no answer in time"
_NUM_PINGS = 8
_PY_SPY_SECONDS = 30.0


class Ping(NamedTuple):
    """A round trip: sent and answered by our clock, with the other's time in between;
    nanoseconds."""

    sent: int
    theirs: int
    answered: int

    @property
    def round_trip(self) -> int:
        return self.answered - self.sent


class ClockOffset(NamedTuple):
    """Add ``offset`` to another's time to get ours; the error is at most ``error``. Nanoseconds."""

    offset: int
    error: int


SAME = ClockOffset(0, 0)
"""Of processes of one machine: they share the clock."""


def offset_from(pings: Iterable[Ping]) -> ClockOffset | None:
    """Return the offset of two clocks, from the ping with the shortest round trip (Cristian).

    ``None`` if there is no ping.
    """
    best = min(pings, key=lambda ping: ping.round_trip, default=None)
    if best is None:
        return None
    middle = best.sent + best.round_trip // 2
    return ClockOffset(middle - best.theirs, (best.round_trip + 1) // 2)


@dataclass
class Drained:
    """The records of processes.

    ``rows`` are by process, packed as `runtime.observe.drain` does; ``about`` are lines on
    processes and clocks. ``silent`` names the processes that sent none, and why.
    """

    rows: list[tuple[str, bytes]] = field(default_factory=list)
    about: list[bytes] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)

    @property
    def packed(self) -> list[bytes]:
        """Return the rows of all processes, and the lines about them, as packed lines."""
        lines = [pack_lines(row_objects(uid, unpack_rows(rows))) for uid, rows in self.rows]
        return [*lines, *self.about]


def hosts_of(agent: ClientAgent) -> dict[str, ProcAddress]:
    """Return all hosts that a program runs on, by URL: those that it is attached to, and itself."""
    linked = {url: link.address for url, link in agent.links.items() if not link.is_lost}
    return {"this program": agent.node.address, **linked}


def programs_here() -> Iterator[tuple[int, ProcAddress]]:
    """Yield the pid and the address of each program of this user on this machine."""
    base, machine = runtime_dir(), machine_id()
    for name in sorted(os.listdir(base)):
        prefix, _, pid_and_uid = name.partition("-")
        pid, _, uid = pid_and_uid.partition("-")
        path = os.path.join(base, name, uid)
        is_of_here = prefix == machine[:6] and pid.isdigit() and uid
        if is_of_here and is_there(int(pid)) and os.path.exists(path):
            yield int(pid), ProcAddress(uid, (f"ipc://{path}",), machine)


def program_at(pid: int) -> ProcAddress | None:
    """Return the address of the program with that pid; ``None`` if it cannot be asked."""
    return next((address for other, address in programs_here() if other == pid), None)


def procs_of(
    looks: Iterable[Mapping[str, Any]], uids: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """Return the procs of `MeshVisit.look`, or those with ``uids``, each with its host's
    ``url``."""
    return [
        {**proc, "url": look["url"]}
        for look in looks
        for proc in look.get("procs", ())
        if uids is None or proc["uid"] in uids
    ]


class MeshVisit:
    """A visit to ``hosts``: addresses of host agents, by URL or by another name that people
    know."""

    host_seconds = ASK_SECONDS  # for the answers of hosts
    client_seconds = 1.0
    stacks_seconds = 3.0

    def __init__(self, node: Node, hosts: Mapping[str, ProcAddress]) -> None:
        self._node = node
        self._hosts: dict[str, ProcAddress] = {}
        self._addresses: dict[str, ProcAddress] = {}
        self._clocks: dict[str, ClockOffset] = {}
        self.go_to(hosts)

    def go_to(self, hosts: Mapping[str, ProcAddress]) -> None:
        """Visit these hosts from now on. Any thread may call it; questions in progress go on."""
        node, known_before = self._node, dict(self._addresses)
        self._addresses.update(hosts)
        self._hosts = dict(hosts)
        for url, address in hosts.items():
            is_new = known_before.get(url) != address and address.uid != node.uid
            if is_new and node.failure_of(address.uid) is None:
                node.address_book.reach(address)

    def look(self, *, flight: bool = False) -> list[dict[str, Any]]:
        """Return each host's current state (see `runtime.observe.host_desk`), or an ``error``.

        Each has its ``url``, its ``offset`` from our clock, and the ``client_state`` of the program
        that it serves. With ``flight``, also torch's last collectives.
        """
        looks: list[dict[str, Any]] = []
        clients: dict[str, dict[str, Any]] = {}
        for url, response in self._ask_hosts(LookAtHost(flight)).items():
            if response.error:
                looks.append({"error": response.error, "url": url, "client_state": None})
                continue
            client = response.answer.state.client_address
            if client is not None and client.uid not in clients:
                state = self._ask(client, LookAtProc(), self.client_seconds)
                clients[client.uid] = state.or_else({})
            look = _flat(response.answer)
            look["url"] = url
            look["client_state"] = clients.get(client.uid) if client is not None else None
            look["offset"], look["clock_error"] = self._clock(url)
            looks.append(look)
        return looks

    def drain(self) -> Drained:
        """Return the last events of all processes: the procs, their hosts, and their client."""
        drained = Drained()
        clients: set[str] = set()
        for url, response in self._ask_hosts(DrainHost()).items():
            if response.error:
                drained.silent.append(f"{url}: {response.error}")
                continue
            answer = response.answer
            drained.rows += answer.rows
            drained.about.append(pack_lines([*answer.about, self._clock_row(url, answer.host)]))
            drained.silent += [f"{label}: {_LATE}" for label in answer.silent]
            client = answer.client
            if client is not None and client.uid not in clients:
                clients.add(client.uid)
                self._drain_client(client, drained)
        return drained

    def _drain_client(self, client: ProcAddress, drained: Drained) -> None:
        response = self._ask(client, DrainProc(), self.client_seconds)
        now = time.monotonic_ns()
        about = {
            "k": "proc", "p": client.uid, "t": now, "offset": time.time_ns() - now,
            "name": "client", "mesh": "", "rank": 0, "life": 0,
        }  # fmt: skip
        drained.about.append(pack_lines([about]))
        drained.rows.append((client.uid, response.or_else(b"")))

    def keep(self, seconds: float) -> None:
        """Make the hosts keep the records of their procs for ``seconds``.

        Then a proc's records are available after its end, too.
        """
        self._ask_hosts(KeepRows(seconds))

    def profile(
        self, procs: Iterable[Mapping[str, Any]], seconds: float
    ) -> dict[str, tuple[bytes, str]]:
        """Return pairs of torch's trace and an error for each of ``procs`` (see `procs_of`), by
        uid.

        The trace is compressed with zstd. One of the two is empty.
        """
        questions = {
            proc["uid"]: self._node.ask(proc["address"], ProfileProc(seconds))
            for proc in procs
            if proc.get("address")
        }
        answers = collect(questions, seconds + 60.0, _LATE)
        return {uid: (response.or_else(b""), response.error) for uid, response in answers.items()}

    def stacks(self, procs: Iterable[Mapping[str, Any]]) -> list[ProcStacks]:
        """Return the stacks of the actors and threads of each of ``procs`` (see `procs_of`)."""
        up = {proc["uid"]: proc for proc in procs if proc.get("address")}
        questions = {
            uid: self._node.ask(proc["address"], StacksAsked(False)) for uid, proc in up.items()
        }
        answers = collect(questions, self.stacks_seconds, "does not answer")
        return [
            ProcStacks.of(uid, up[uid]["name"], up[uid]["rank"], up[uid]["pid"], response)
            for uid, response in answers.items()
        ]

    def py_spy(self, procs: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
        """Return py-spy's stacks of each of ``procs`` as (JSON, error), by uid. One of the two is
        "".
        """
        by_host: dict[str, list[str]] = defaultdict(list)
        for proc in procs:
            by_host[proc["url"]].append(proc["uid"])
        questions = {
            url: self._node.ask(self._addresses[url], PySpyAsked(tuple(uids), False))
            for url, uids in by_host.items()
        }
        stacks: dict[str, tuple[str, str]] = {}
        for url, response in collect(questions, _PY_SPY_SECONDS, _LATE).items():
            dumps = response.or_else(PySpyDumps({}, {}))
            for uid in by_host[url]:
                stacks[uid] = dumps.dumps.get(uid, ""), dumps.errors.get(uid, response.error)
        return stacks

    def _clock_row(self, url: str, host: str) -> dict[str, Any]:
        """Return the row that converts a host's clock to time since 1970 by this machine's
        clock."""
        offset, error = self._clock(url)
        epoch = time.time_ns() - time.monotonic_ns()
        return {"k": "clock", "host": host, "offset": offset + epoch, "run": error}

    def _clock(self, url: str) -> ClockOffset:
        if self._addresses[url].machine == self._node.address.machine:
            return SAME
        if url not in self._clocks:
            pings = [self._ping(url) for _ in range(_NUM_PINGS)]
            offset = offset_from(ping for ping in pings if ping is not None)
            self._clocks[url] = offset or SAME
        return self._clocks[url]

    def _ping(self, url: str) -> Ping | None:
        sent = time.monotonic_ns()
        response = self._ask(self._addresses[url], AskClock(), self.client_seconds)
        answered = time.monotonic_ns()
        return None if response.error else Ping(sent, response.answer, answered)

    def _ask_hosts(self, request: Request[A]) -> dict[str, Response[A]]:
        return ask_hosts(self._node, self._hosts, request, seconds=self.host_seconds)

    def _ask(self, to: ProcAddress, request: Request[A], seconds: float) -> Response[A]:
        return collect({to.uid: self._node.ask(to, request)}, seconds, _LATE)[to.uid]


def _flat(look: HostLook) -> dict[str, Any]:
    """Return a host's answer in the form that views read, each proc with its own answer."""
    state = look.state
    procs = [
        {
            "uid": proc.uid, "name": proc.name, "rank": proc.rank, "pid": proc.pid,
            "mesh": proc.mesh, "labels": proc.labels, "sizes": proc.sizes, "is_up": proc.is_up,
            "life": proc.life, "hangs": proc.hangs, "answers": bool(look.seen[proc.uid][1]),
            "address": proc.address, **look.seen[proc.uid][0], **look.seen[proc.uid][1],
        }
        for proc in state.procs
    ]  # fmt: skip
    return {
        "host": state.host, "pid": state.pid, "now": look.now, "epoch": look.epoch,
        "client": state.client_address, "procs": procs, "uid": state.uid,
        "holds": [msgspec.to_builtins(hold) for hold in look.holds],
        "notices": [msgspec.to_builtins(bulletin) for bulletin in state.bulletins],
        **look.machine,
    }  # fmt: skip
