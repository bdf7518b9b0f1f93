"""Answers questions to a host agent about its machine and procs, and keeps the rows of dead
procs."""

from __future__ import annotations

import functools
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from monarch.core.event_ring import FAILURE
from monarch.runtime.answers import Response
from monarch.runtime.debugger.hold_book import HoldBook
from monarch.runtime.hosts.host_proc import HostProc
from monarch.runtime.node import Node
from monarch.runtime.observe.drain import pack_rows
from monarch.runtime.observe.machine_state import machine_state, process_state
from monarch.runtime.observe.py_spy import dump_aside
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import (
    AskClock,
    Body,
    DrainHost,
    DrainProc,
    HostLook,
    HostRows,
    HostState,
    KeepRows,
    LastRows,
    LookAtHost,
    LookAtProc,
    PySpyAsked,
    PySpyDumps,
    Request,
)

A = TypeVar("A")
_KEEP_EVERY_SECONDS = 2.0
_MOST_KEPT_BYTES = 64 * 2**20
_MOST_ENDED = 4096
_MOST_KEPT_SECONDS = 24 * 3600.0


class AskedHost(Protocol):
    """The parts of the host agent that its desk uses."""

    node: Node
    name: str
    procs: dict[Uid, HostProc]
    holds: HoldBook

    @property
    def client(self) -> ProcAddress | None: ...

    def describe(self) -> HostState: ...


class _KeptRows(NamedTuple):
    """Packed rows of a proc, and when the desk got them, by the loop's clock."""

    time: float
    proc: Uid
    rows: bytes


class HostDesk:
    """Answers requests to a host agent. All methods run on the node's I/O loop."""

    look_seconds = 1.0  # for the answers of procs
    drain_seconds = 3.0

    def __init__(self, host: AskedHost) -> None:
        self._host = host
        self._node = host.node
        self._kept: deque[_KeptRows] = deque()
        #: The rows about procs that have ended, with the time.
        self._ended: deque[tuple[float, dict[str, Any]]] = deque(maxlen=_MOST_ENDED)
        #: How long rows are kept; 0 for not at all.
        self._keep_seconds = 0.0
        self._is_ticking = False
        self._node.on(AskClock, self._on_ask_clock)
        self._node.on(LookAtHost, self._on_look)
        self._node.on(DrainHost, self._on_drain)
        self._node.on(KeepRows, self._on_keep)
        self._node.handle(LastRows, self._on_last)
        self._node.on(PySpyAsked, self._on_py_spy)

    def proc_ended(self, proc: HostProc, reason: str, is_expected: bool) -> None:
        """Add a row about the end of a proc, because the proc cannot do so."""
        if self._node.ring is not None and not is_expected:
            self._node.ring.note(FAILURE, proc.label, reason, proc.uid)
        if self._keep_seconds:
            self._ended.append((self._node.loop.time(), self._about(proc)))

    def _about(self, proc: HostProc) -> dict[str, Any]:
        spawn = proc.spawn
        shape = {"labels": spawn.labels, "sizes": spawn.sizes}
        about = self._row(proc.uid, proc.label, proc.pid, spawn.mesh, proc.spec.rank)
        return {**about, **shape, "life": proc.life}

    def _about_itself(self) -> dict[str, Any]:
        return self._row(self._node.uid, f"agent of {self._host.name}", os.getpid())

    def _row(self, uid: Uid, name: str, pid: int, mesh: Uid = "", rank: int = 0) -> dict[str, Any]:
        """Return a row about a process of this host.

        ``t`` is the present time by the host's clock, in nanoseconds; ``t`` plus ``offset`` is the
        time since 1970.
        """
        now = time.monotonic_ns()
        return {
            "k": "proc", "p": uid, "t": now, "offset": time.time_ns() - now,
            "name": name, "mesh": mesh, "rank": rank, "pid": pid,
            "host": self._host.name, "life": 0,
        }  # fmt: skip

    def _ask_all(
        self,
        request: Request[A],
        seconds: float,
        done: Callable[[Mapping[Uid, Response[A]]], None],
    ) -> None:
        """Send a request to every proc that is up. After ``seconds``, or when all have answered,
        call ``done`` with the answers.
        """
        addresses = [p.address for p in self._host.procs.values() if p.address is not None]
        responses: dict[Uid, Response[A]] = {}
        is_over = False

        def finish() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                timer.cancel()
                done(responses)

        def answered(uid: Uid, response: Response[A]) -> None:
            responses[uid] = response
            if len(responses) == len(addresses):
                finish()

        timer = self._node.loop.call_later(seconds, finish)
        for address in addresses:
            self._node.ask_on_loop(address, request, functools.partial(answered, address.uid))
        if not addresses:
            finish()

    def _on_ask_clock(self, order: AskClock) -> None:
        self._node.answer(order, time.monotonic_ns())

    def _on_look(self, order: LookAtHost) -> None:

        def done(responses: Mapping[Uid, Response[Body]]) -> None:
            state = self._host.describe()
            state.client_address = self._host.client
            silent = Response[Body](None)
            seen = {
                proc.uid: (
                    process_state(proc.pid),
                    responses.get(proc.uid, silent).or_else({}),
                )
                for proc in state.procs
            }
            holds = tuple(self._host.holds.standing())
            now, epoch = time.monotonic_ns(), time.time_ns()
            self._node.answer(
                order, HostLook(state, now, epoch, holds, seen=seen, machine=machine_state())
            )

        self._ask_all(LookAtProc(order.flight), self.look_seconds, done)

    def _on_py_spy(self, order: PySpyAsked) -> None:
        pids = {uid: proc.pid for uid, proc in self._host.procs.items() if uid in order.procs}

        def done(dumps: dict[str, str], errors: dict[str, str]) -> None:
            self._node.answer(order, PySpyDumps(dumps, errors))

        dump_aside(pids, order.native, done)

    def _on_drain(self, order: DrainHost) -> None:
        takes = self._keep_seconds > 0

        def done(responses: Mapping[Uid, Response[bytes]]) -> None:
            fresh = self._rows_of(responses, takes)
            if self._is_apart and self._node.ring is not None:
                fresh.append((self._node.uid, pack_rows(self._node.ring.rows())))
            procs = self._host.procs.values()
            rows = HostRows(
                host=self._host.name,
                now=time.monotonic_ns(),
                epoch=time.time_ns(),
                about=[
                    *(about for _, about in self._ended),
                    *map(self._about, procs),
                    self._about_itself(),
                ],
                rows=[*((kept.proc, kept.rows) for kept in self._kept), *fresh],
                silent=[
                    proc.label
                    for proc in procs
                    if proc.uid not in responses or responses[proc.uid].error
                ],
                client=self._host.client,
            )
            self._node.answer(order, rows)

        self._drain(takes, done)

    @property
    def _is_apart(self) -> bool:
        """Return whether this agent is a process of its own, so that its rows are not among the
        client's.
        """
        client = self._host.client
        return client is None or client.uid != self._node.uid

    def _drain(self, takes: bool, done: Callable[[Mapping[Uid, Response[bytes]]], None]) -> None:
        self._ask_all(DrainProc(takes), self.drain_seconds, done)

    def _rows_of(
        self, responses: Mapping[Uid, Response[bytes]], takes: bool
    ) -> list[tuple[Uid, bytes]]:
        """Return the rows that the procs have sent, by proc.

        ``takes``: the procs have dropped the rows that they sent. Then this desk keeps the rows for
        later questions, and the list is empty.
        """
        sent = {uid: rows for uid, answer in responses.items() if (rows := answer.or_else(b""))}
        if not takes:
            return list(sent.items())
        now = self._node.loop.time()
        self._kept.extend(_KeptRows(now, uid, rows) for uid, rows in sent.items())
        return []

    def _on_keep(self, order: KeepRows) -> None:
        self._keep_seconds = min(max(order.seconds, 0.0), _MOST_KEPT_SECONDS)
        if not self._keep_seconds:
            self._kept.clear()
        elif not self._is_ticking:
            self._is_ticking = True
            self._tick()
        self._node.answer(order)

    def _on_last(self, envelope: Envelope[LastRows]) -> None:
        last = envelope.message
        if self._keep_seconds and envelope.payload:
            rows = _KeptRows(self._node.loop.time(), last.proc, bytes(envelope.payload))
            self._kept.append(rows)

    def _tick(self) -> None:
        if not self._keep_seconds:
            self._is_ticking = False
            return
        self._drain(True, self._keep)
        self._node.loop.call_later(_KEEP_EVERY_SECONDS, self._tick)

    def _keep(self, responses: Mapping[Uid, Response[bytes]]) -> None:
        """Keep the rows that the procs have sent, and drop rows that are too old.

        The oldest rows are also dropped if all together are too large.
        """
        self._rows_of(responses, True)
        oldest = self._node.loop.time() - self._keep_seconds
        while self._kept and (
            self._kept[0].time < oldest or sum(len(k.rows) for k in self._kept) > _MOST_KEPT_BYTES
        ):
            self._kept.popleft()
        while self._ended and self._ended[0][0] < oldest:
            self._ended.popleft()
