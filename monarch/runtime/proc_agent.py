"""The actors of one process: makes them, brings them their messages, and ends them.

The same agent runs in procs and in the client, which is a proc too: ``this_proc()`` works
there, and controllers live there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from monarch.core.mailbox import Delivery, Fence, Lift
from monarch.errors import MeshFailure
from monarch.runtime.actor_cell import ActorCell, Fail, Judge, Reloaded, refusal
from monarch.runtime.cell_runners import make_cell
from monarch.runtime.context import ActorRecord
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.runtime.supervisor import Supervisor
from monarch.wire import payload
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import (
    ActorFailed,
    Call,
    Inspect,
    ProcDown,
    Reply,
    SpawnActor,
    StopActor,
)

__all__ = ["ProcAgent"]

_log = logging.getLogger("monarch.proc")


class ProcAgent:
    """Holds the actor cells of a process, and supervises what they own."""

    def __init__(self, node: Node, host: ProcAddress) -> None:
        self.node = node
        self.host = host
        self.generation = 0
        self.supervisor = Supervisor(node, self)
        self._cells: dict[Uid, ActorCell] = {}
        self._ended: dict[Uid, tuple[str, int]] = {}
        self._early: dict[Uid, list[Envelope]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._fences: dict[int, _OpenFence] = {}
        self._owned_procs: dict[Uid, ProcAddress] = {}
        node.on_peer_down.append(self._forget_proc)
        node.handle(Call, self._on_call, on_any_thread=True)
        node.handle(SpawnActor, self.on_spawn, on_any_thread=True)
        node.handle(StopActor, self._on_stop, on_any_thread=True)
        node.handle(Inspect, self._on_inspect)

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """The asyncio loop of this process, on which async actors run."""
        self._loop = loop

    def asyncio_loop(self) -> asyncio.AbstractEventLoop:
        """The loop for async actors; a client gets one on a thread of its own when needed."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_run_and_close, args=(self._loop,), name="monarch-asyncio", daemon=True
                ).start()
            return self._loop

    @property
    def is_root(self) -> bool:
        """Whether this is the client, which nobody owns."""
        return False

    def own_procs(self, procs: Iterable[ProcAddress]) -> None:
        """This process has spawned procs: they follow its generations."""
        self._owned_procs.update((proc.uid, proc) for proc in procs)

    def _forget_proc(self, uid: Uid, down: ProcDown) -> None:
        self._owned_procs.pop(uid, None)

    def owned_procs(self) -> list[ProcAddress]:
        """The procs spawned here that are not known to be dead."""
        return list(self._owned_procs.values())

    @property
    def cells(self) -> list[ActorCell]:
        return list(self._cells.values())

    def on_spawn(self, envelope: Envelope) -> None:
        spawn = envelope.message
        assert isinstance(spawn, SpawnActor)
        record = ActorRecord(
            spawn.actor, spawn.name, spawn.class_name, spawn.rank, spawn.labels, spawn.sizes,
            spawn.owner, spawn.owner_actor, spawn.creator,
        )  # fmt: skip
        cell = make_cell(record, spawn, self, self.asyncio_loop)
        with self._lock:
            for fence in self._fences.values():
                # Sent after the fence: it must wait behind it like everything of that sender.
                if fence.sender == spawn.owner.uid:
                    fence.missing.add(spawn.actor)
                    cell.deliver(Fence(fence.sender, fence.number))
            cell.deliver(Delivery(spawn.owner.uid, envelope))
            for call in self._early.pop(spawn.actor, []):
                assert isinstance(call.message, Call)
                cell.deliver(Delivery(call.message.sender, call))
            # Only now: nobody's call may get in before the order to make it.
            self._cells[spawn.actor] = cell

    def _on_call(self, envelope: Envelope) -> None:
        call = envelope.message
        assert isinstance(call, Call)
        cell = self._cells.get(call.actor) or self._wait_for_spawn(call.actor, envelope)
        if cell is not None:
            cell.deliver(Delivery(call.sender, envelope))
            if cell.is_ended:
                cell.turn_away()
        elif call.port and call.actor in self._ended:
            name, rank = self._ended[call.actor]
            to = call.port_proc or self.node.address_of(call.sender)
            data = refusal(name, rank, call, "it was stopped")
            self.send_reply(to, Reply(call.port, call.rank, self.node.uid, True, True), data)

    def _wait_for_spawn(self, actor: Uid, envelope: Envelope) -> ActorCell | None:
        """Keep a call that has overtaken the order to make its actor, on another connection."""
        with self._lock:
            cell = self._cells.get(actor)
            if cell is None and actor not in self._ended:
                self._early.setdefault(actor, []).append(envelope)
            return cell

    def _on_stop(self, envelope: Envelope) -> None:
        stop = envelope.message
        assert isinstance(stop, StopActor)
        cell = self._cells.get(stop.actor)
        if cell is None:
            self.answer(stop.sender, stop.port)
        else:
            cell.deliver(Delivery(stop.sender, envelope))
            if cell.is_ended:
                cell.turn_away()

    def _on_inspect(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Inspect)
        actors = [{"name": c.record.name, "rank": c.record.rank} for c in self.cells]
        self.node.answer(
            order.sender, order.port, {"generation": self.generation, "actors": actors}
        )

    def stop_all(self, timeout_seconds: float) -> None:
        """Stop every actor, each with its ``__cleanup__``, within ``timeout_seconds``."""
        cells = self.cells
        deadline = time.monotonic() + timeout_seconds
        for cell in cells:
            stop = StopActor(cell.record.uid, "the process ends", 0, "")
            cell.deliver(Delivery("stop", Envelope("", stop)))
        for cell in cells:
            cell.ended.wait(max(0.0, deadline - time.monotonic()))

    # What cells need: see CellHost.

    @property
    def uid(self) -> Uid:
        return self.node.uid

    def send_reply(self, to: ProcAddress, reply: Reply, data: payload.Payload) -> None:
        self.node.send(to, reply, data.data, data.buffers)

    def address_of(self, uid: Uid) -> ProcAddress:
        return self.node.address_of(uid)

    def answer(self, uid: Uid, port: int, error: str = "") -> None:
        self.node.answer(uid, port, error=error)

    def cell_failed(self, cell: ActorCell, reason: str) -> list[Promise[Any]]:
        """An actor has failed: what it owns ends first, then its owner is told."""
        record = cell.record
        ends = self.supervisor.actor_ended(record.uid)
        failed = ActorFailed(record.uid, record.rank, record.name, self.node.uid, reason)
        self.node.send(record.owner, failed)
        return ends

    def cell_ending(self, cell: ActorCell) -> list[Promise[Any]]:
        """An actor is about to end: what it owns ends first."""
        return self.supervisor.actor_ended(cell.record.uid)

    def cell_ended(self, cell: ActorCell) -> None:
        record = cell.record
        self.supervisor.actor_ended(record.uid)
        with self._lock:
            self._cells.pop(record.uid, None)
            self._ended[record.uid] = (record.name, record.rank)
            open_fences = list(self._fences.values())
        for fence in open_fences:
            self._reached(fence, record.uid)

    # What the supervisor needs: see Supervised.

    def judge(self, actor: Uid, failure: MeshFailure, verdict: Callable[[bool], None]) -> None:
        cell = self._cells.get(actor)
        if cell is not None:
            cell.deliver(Delivery("supervision", Judge(failure, verdict)))

    def fail(self, actor: Uid, failure: MeshFailure) -> None:
        cell = self._cells.get(actor)
        if cell is not None:
            reason = f"it did not handle the failure of what it owns: {failure.report()}"
            cell.deliver(Delivery("supervision", Fail(reason)))

    def fault(self, failure: MeshFailure) -> None:
        _log.error("a failure was not handled: %s", failure.report())

    # Switching all actors between the same two messages.

    def fence(self, sender: Uid, number: int, switch: Callable[[], None], exempt: Uid = "") -> None:
        """Run ``switch`` once every actor is done with what ``sender`` sent so far.

        What ``sender`` sends from here on is handled after it. Runs on the thread of the last
        actor to get there; where there are none, on a new one. The actor ``exempt`` is not
        waited for: it is the one that waits for the switch.
        """
        with self._lock:
            cells = {uid: cell for uid, cell in self._cells.items() if uid != exempt}
            fence = _OpenFence(sender, number, set(cells), switch)
            self._fences[number] = fence
        for cell in cells.values():
            cell.deliver(Fence(sender, number))
        if not cells:
            threading.Thread(target=self._open, args=(fence,), name="monarch-switch").start()

    def fence_reached(self, cell: ActorCell, number: int) -> None:
        fence = self._fences.get(number)
        if fence is None:
            cell.deliver(Lift(number))
        else:
            self._reached(fence, cell.record.uid)

    def _reached(self, fence: _OpenFence, actor: Uid) -> None:
        with self._lock:
            if actor not in fence.missing:
                return
            fence.missing.discard(actor)
            is_last = not fence.missing
        if is_last:
            self._open(fence)

    def _open(self, fence: _OpenFence) -> None:
        try:
            fence.switch()
        finally:
            with self._lock:
                self._fences.pop(fence.number, None)
                cells = list(self._cells.values())
            for cell in cells:
                cell.deliver(Lift(fence.number))

    def tell_reloaded(self, change: object) -> None:
        """Have every actor that defines ``__reload__`` run it before its next message."""
        for cell in self.cells:
            cell.deliver(Delivery("reload", Reloaded(change)))


def _run_and_close(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


class _OpenFence:
    """A switch that waits for actors to be done with what came before it."""

    def __init__(
        self, sender: Uid, number: int, missing: set[Uid], switch: Callable[[], None]
    ) -> None:
        self.sender = sender
        self.number = number
        self.missing = missing
        self.switch = switch
