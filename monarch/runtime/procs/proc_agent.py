"""The agent of one process: makes its actors, delivers their messages, and ends them.

The same agent runs in procs and in the client, which is a proc too: ``this_proc()`` works there,
and controllers live there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from monarch.core.holds import HeldTime
from monarch.core.mailbox import Delivery, Reached
from monarch.core.supervision import UnhandledFailure
from monarch.errors import MeshFailure
from monarch.net.io_loop import IoLoop
from monarch.runtime.cells.actor_cell import ActorCell
from monarch.runtime.cells.actor_loops import ActorLoop, ActorLoops
from monarch.runtime.cells.call_watch import CallWatch
from monarch.runtime.cells.cell_runners import make_cell
from monarch.runtime.cells.cell_table import CellTable
from monarch.runtime.cells.cell_work import Fail, Judge
from monarch.runtime.cells.ring_watch import RingWatch
from monarch.runtime.cells.undelivered import Undelivered
from monarch.runtime.code_states import CodeStates, WorkspaceStates
from monarch.runtime.context import ActorRecord
from monarch.runtime.links.peer_down import failure_of
from monarch.runtime.node import Node
from monarch.runtime.procs.fences import Fences
from monarch.runtime.procs.keeps_all import KeepsAll
from monarch.runtime.procs.kept_spawns import KeptSpawns
from monarch.runtime.procs.spawn_gate import SpawnGate
from monarch.runtime.procs.supervisor import Supervisor
from monarch.runtime.promise import Promise
from monarch.wire import payload
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import (
    ActorFailed,
    AskOrigin,
    Call,
    ClocksStand,
    Command,
    InspectProc,
    ProcAgain,
    ProcDown,
    ProcReport,
    Reply,
    Returned,
    SpawnActor,
    StopActor,
    WatchHost,
)

_log = logging.getLogger("monarch.proc")


class ProcAgent:
    """Holds the actor cells of a process, and supervises what they own."""

    #: Whether this is the client, which is the root of all owners.
    is_root = False

    def __init__(self, node: Node, host: ProcAddress) -> None:
        self.node = node
        #: The host agent of this process.
        self.host = host
        #: What starts the templates of procs that are spawned from here; None for our own.
        self.command: Command | None = None
        self.gate = node.gate
        #: Delays spawns while files of the workspace change.
        self.spawn_gate = SpawnGate()
        #: The workspace state that each host should have.
        self.workspaces = WorkspaceStates()
        #: The code that each host runs.
        self.code_states = CodeStates()
        #: The loop that threads of actors poll for while they wait; None for no such polling.
        self.io_loop: IoLoop | None = None
        #: The procs that each mesh of actors was spawned on here.
        self.spawned_on: dict[Uid, object] = {}
        #: Why no actor can be made here, as the bootstrap has failed; "" if one can.
        self.spoiled = ""
        #: Whether this process starts again from the beginning with the next code that comes.
        self.begins_anew = False
        #: The debugger's watch over the calls of actors; None as long as there is none.
        self.watch: CallWatch | None = None
        #: The time for which clocks were stopped, because a debugger held a call.
        self.held_time = HeldTime()
        #: Ends dropped meshes of procs; in the client only.
        self.collector = KeepsAll()
        #: Called when the client leaves the network.
        self.at_close: list[Callable[[], None]] = []
        #: Called before the actors of a proc are stopped.
        self.at_stop: list[Callable[[], None]] = []
        self.supervisor = Supervisor(node, self, self.forget_mesh)
        #: The orders that made actors, for procs that are replaced.
        self.kept_spawns = KeptSpawns(self.supervisor.has_living)
        self._cells = CellTable(self)
        self.rings = RingWatch(node, self._cells, lambda: self.root)
        #: Orders of other processes during `only_own_actors`; None outside of it.
        self._held: list[Envelope[SpawnActor]] | None = None
        #: The client, if it is another process.
        self._root: ProcAddress | None = None
        self.on_demand = self._cells.on_demand
        #: The asyncio loops of async actors.
        self.loops = ActorLoops()
        #: Guards `_held`.
        self._lock = threading.Lock()
        self.fences = Fences(self._cells.all, self._cells.lock)
        #: The living procs that were spawned here.
        self._owned_procs: dict[Uid, ProcAddress] = {}
        node.peer_down.on_down.append(self._forget_proc)
        node.peer_down.on_again.append(self._make_again)
        node.address_book.watches_callers = True
        #: The other hosts that our host agent watches for us.
        self._hosts_watched: set[Uid] = set()
        if host.uid != node.uid:
            node.address_book.on_host_met.append(self._watch_host)
        node.handle(Call, self._cells.take_call, on_any_thread=True)
        node.handle(SpawnActor, self.on_spawn, on_any_thread=True)
        node.handle(StopActor, self._cells.take_stop, on_any_thread=True)
        node.on(InspectProc, self._on_inspect)
        node.on(Returned, self._on_returned)
        node.on_undelivered = self._on_undelivered
        node.on(AskOrigin, self._on_ask_origin)

    def actor_loop(self, name: str) -> ActorLoop:
        """Return an asyncio loop for an actor of that name."""
        return self.loops.take(name, self.io_loop)

    def remember_imports(self) -> None:
        """Remember the texts of imported modules, to compare them with new code.

        Call it before objects are made that new code may change. Does nothing in a proc, which
        follows its imports from its start.
        """

    def imported_texts(self) -> dict[str, bytes]:
        """Return the texts of modules that were imported before imports were followed, by file.

        A proc follows its imports from its start, so there are none.
        """
        return {}

    def given_workspaces(self) -> list[str]:
        """Return the ``$WORKSPACE_DIR`` of the procs on the host inside this process. A proc has no
        host inside it, so the list is empty here; a client overrides this.
        """
        return []

    @property
    def generation(self) -> int:
        """The generation of the workspace whose code runs here; 0 before the first."""
        return self.gate.generation

    @generation.setter
    def generation(self, generation: int) -> None:
        self.gate.begin_at(generation)

    @property
    def root(self) -> ProcAddress:
        """The client that owns everything here, directly or through others."""
        return self._root or self.node.address

    def use_root(self, root: ProcAddress) -> None:
        self._root = root
        self.gate.root = root.uid

    def end_actor(self, actor: Uid, reason: str, *, failed: bool) -> None:
        """End an actor of this process once it is done with the message in hand.

        An actor that stops handles the messages that have arrived; an actor that fails does not.
        """
        cell = self._cells.get(actor)
        if cell is not None and failed:
            cell.doom(reason)
        elif cell is not None:
            stop = StopActor(actor, reason)
            cell.deliver(Delivery("itself", Envelope("", stop)))

    def own_procs(self, procs: Sequence[ProcAddress]) -> None:
        """Note that this process has spawned ``procs``. They change to a new generation of the
        workspace together with this process.
        """
        self._owned_procs.update((proc.uid, proc) for proc in procs)
        for proc in procs:
            if self.node.failure_of(proc.uid) is not None:
                # It died before it was added here, and its end will not be reported again.
                self._owned_procs.pop(proc.uid, None)
        if self.held_time.is_held:
            self.node.loop.call_soon(lambda: self._tell_newborn(procs))

    def clocks_stand(self, is_held: bool) -> None:
        """Stop the timeouts of this process and of its procs, or start them again.

        They are stopped while a person holds any call of the program. On the node's I/O loop.
        """
        self.held_time.hold(is_held, self.node.loop.time())
        for proc in self.owned_procs():
            self.node.send(proc, ClocksStand(is_held))

    def _tell_newborn(self, procs: Iterable[ProcAddress]) -> None:
        """Tell new procs that timeouts are stopped, because a call is held."""
        if self.held_time.is_held:
            for proc in procs:
                self.node.send(proc, ClocksStand(True))

    def forget_mesh(self, mesh: Uid) -> None:
        """Forget a mesh that was spawned here and has ended."""
        self.spawned_on.pop(mesh, None)
        self.kept_spawns.forget(mesh)

    def _watch_host(self, host: ProcAddress) -> None:
        """Have our own host agent watch the host of a proc that we use."""
        if host.uid != self.host.uid and host.uid not in self._hosts_watched:
            self._hosts_watched.add(host.uid)
            if self.node.failure_of(host.uid) is not None:
                # It was lost once, and may be back: the proc that we use may be of its second life.
                self.node.peer_down.left(host.uid)
            self.node.send(self.host, WatchHost(host, self.node.address))

    def _forget_proc(self, uid: Uid, down: ProcDown) -> None:
        self._owned_procs.pop(uid, None)
        self._hosts_watched.discard(uid)
        self.kept_spawns.release(uid)
        orphans = [cell for cell in self.cells if cell.record.owner.uid == uid]
        if orphans and not down.expected:
            for cell in orphans:
                cell.fail(Fail(failure_of(down), ""))

    def _make_again(self, again: ProcAgain) -> None:
        """Make this process's actors again in a new proc that has replaced an old proc. Actors here
        whose owner lived in the old proc are ended.
        """
        proc = self.node.address_of(again.uid)
        with self.node.casting:
            for spawn, data in self.kept_spawns.again(again.uid):
                self.node.send(proc, spawn, data.data, data.buffers)
        if again.uid in self._owned_procs:
            self._tell_newborn([proc])
        for cell in self.cells:
            if cell.record.owner.uid == again.uid:
                self.end_actor(cell.record.uid, "its owner was replaced", failed=False)

    def owned_procs(self) -> list[ProcAddress]:
        """Return the procs spawned here that are not known to be dead."""
        return list(self._owned_procs.values())

    @property
    def cells(self) -> list[ActorCell]:
        return self._cells.all()

    @contextlib.contextmanager
    def only_own_actors(self) -> Iterator[None]:
        """In this block, hold back orders to make actors that come from other processes."""
        self._held = []
        try:
            yield
        finally:
            with self._lock:
                orders, self._held = self._held, None
            for envelope in orders:
                self.on_spawn(envelope)

    def on_spawn(self, envelope: Envelope[SpawnActor]) -> None:
        spawn = envelope.message
        with self._lock:
            if self._held is not None and spawn.owner.uid != self.node.uid:
                self._held.append(envelope)
                return
        record = ActorRecord(
            uid=spawn.actor,
            name=spawn.name,
            class_name=spawn.class_name,
            rank=spawn.rank,
            labels=spawn.labels,
            sizes=spawn.sizes,
            owner=spawn.owner,
            owner_actor=spawn.owner_actor,
            ancestors=spawn.ancestors,
        )
        self.supervisor.actor_begins(record.uid)
        cell = make_cell(record, self, is_async=spawn.is_async)
        self._cells.enter(cell, envelope, lambda: self.fences.begins(cell, spawn.owner.uid))

    def _on_returned(self, returned: Returned) -> None:
        self._on_undelivered(returned.actor, returned.target, returned.method, returned.reason)

    def _on_undelivered(self, actor: Uid, target: str, method: str, reason: str) -> None:
        cell = self._cells.get(actor)
        if cell is not None:
            message = Undelivered(cell.record.title, target, method, reason)
            cell.deliver(Delivery("undelivered", message, is_urgent=True))

    def _on_ask_origin(self, order: AskOrigin) -> None:
        data = payload.dump(self.spawned_on.get(order.actor))
        to = self.node.address_of(order.sender)
        self.node.send(to, Reply(order.port, 0, self.node.uid), *data)

    def _on_inspect(self, order: InspectProc) -> None:
        where = os.environ.get("WORKSPACE_DIR", "")
        self.node.answer(order, ProcReport(self.generation, self.spoiled, where))

    def stop_all(self, timeout_seconds: float) -> None:
        """Stop every actor, each with its ``__cleanup__``, within ``timeout_seconds``."""
        cells = self.cells
        deadline = time.monotonic() + timeout_seconds
        for cell in cells:
            stop = StopActor(cell.record.uid, "the process ends")
            cell.deliver(Delivery("stop", Envelope("", stop)))
        for cell in cells:
            cell.ended.wait(max(0.0, deadline - time.monotonic()))
        # Actors that are ending may finish: what they own, and their clean-up, have their time.
        deadline = time.monotonic() + 2 * timeout_seconds
        for cell in cells:
            if cell.is_ending:
                cell.ended.wait(max(0.0, deadline - time.monotonic()))

    # The parts that cells use: see CellHost.

    def cell_failed(self, cell: ActorCell, failure: MeshFailure) -> None:
        """Tell the owner that an actor has failed, after everything that the actor owned has
        ended.
        """
        record = cell.record
        failed = ActorFailed(
            actor=record.uid,
            rank=record.rank,
            name=record.name,
            proc=self.node.uid,
            reason=failure.reason,
            cause=failure.cause,
        )
        self.node.send(record.owner, failed)

    def cell_ending(self, cell: ActorCell) -> list[Promise[Any]]:
        """Begin to end everything that an actor owns, because the actor is about to end.

        Returns promises that are set when that has ended.
        """
        return self.supervisor.actor_ended(cell.record.uid)

    def cell_ended(self, cell: ActorCell) -> None:
        self.supervisor.actor_ended(cell.record.uid)
        self._cells.remove(cell)
        self.fences.ended(cell.record.uid)

    # The parts that the supervisor uses: see Supervised.

    def judge(self, actor: Uid, failure: MeshFailure, verdict: Callable[[bool, str], None]) -> None:
        cell = self._cells.get(actor)
        if cell is not None:
            cell.judge(Judge(failure, verdict))

    def fail(self, actor: Uid, failure: MeshFailure, error: str) -> None:
        cell = self._cells.get(actor)
        if cell is not None:
            cell.fail(Fail(failure, error))

    def fault(self, fault: UnhandledFailure) -> None:
        _log.error("a failure was not handled: %s", fault.failure.report())

    def heard_of(self, keys: Collection[str], others: Collection[str] = ()) -> None:
        """Record that the program knows of the failures ``keys``, because a call from outside of
        actors has raised them. They are not reported again.

        ``others`` are further members that were called: if they fail within a while, the program
        counts as told. Keys are those of ``core.supervision.UnhandledFailure``.
        """

    def fence_reached(self, cell: ActorCell, item: Reached) -> None:
        self.fences.reached(cell, item)
