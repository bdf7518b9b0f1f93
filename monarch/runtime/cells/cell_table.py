"""The actors of a process: present, expected, and ended."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable

from monarch.core.event_ring import ACTOR
from monarch.core.mailbox import Delivery
from monarch.runtime.cells.actor_cell import ActorCell, CellHost
from monarch.runtime.cells.cell_answers import CellAnswers, Named
from monarch.wire.address import Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import Call, Message, StopActor

_log = logging.getLogger("monarch.actor")


class CellTable:
    """Delivers messages to the cells of their actors. Any thread may call it.

    A call may arrive on another connection before the order to make its actor; then it waits for
    that order. A call for a stopped actor is refused. ``lock`` is held while an actor is added or
    removed.
    """

    def __init__(self, host: CellHost) -> None:
        self.lock = threading.Lock()
        self._host = host
        self._cells: dict[Uid, ActorCell] = {}
        #: The stopped actors, for as long as the process lives: without its entry here, a late call
        #: would wait for an order to make its actor, for ever. Actors of one name share the texts.
        self._ended: dict[Uid, Named] = {}
        #: The calls that wait for the order to make their actor.
        self._early: dict[Uid, list[Envelope[Message]]] = {}
        #: What makes an actor that is called and does not exist.
        self._on_demand: dict[Uid, Callable[[], None]] = {}

    def all(self) -> list[ActorCell]:
        return list(self._cells.values())

    def get(self, actor: Uid) -> ActorCell | None:
        return self._cells.get(actor)

    def on_demand(self, actor: Uid, spawn: Callable[[], None]) -> None:
        """Call ``spawn`` to make the actor of this uid whenever it is called and does not exist."""
        self._on_demand[actor] = spawn

    def enter(self, cell: ActorCell, order: Envelope[Message], first: Callable[[], None]) -> None:
        """Add an actor, with the order to make it; call ``first`` before the actor gets any
        message."""
        record = cell.record
        actor, owner = record.uid, record.owner
        if (ring := self._host.node.ring) is not None:
            names = record.name, record.class_name
            shape = record.labels, record.sizes
            ring.note(ACTOR, actor, record.rank, *names, *shape, owner.uid, record.owner_actor)
        with self.lock:
            first()
            cell.deliver(Delivery(owner.uid, order))
            for call in self._early.pop(actor, []):
                assert isinstance(call.message, Call)
                cell.deliver(Delivery(call.message.sender, call))
            # Last, because no call may get in before the order to make the actor.
            self._cells[actor] = cell

    def remove(self, cell: ActorCell) -> None:
        """Remove an actor that was stopped. A failed actor stays, to refuse calls itself."""
        record = cell.record
        with self.lock:
            self._cells.pop(record.uid, None)
            if record.uid not in self._on_demand:
                names = Named(sys.intern(record.name), sys.intern(record.title))
                self._ended[record.uid] = names

    def take_call(self, envelope: Envelope[Call]) -> None:
        call = envelope.message
        if (ring := self._host.node.ring) is not None:
            call.arrived = ring.clock()
        cell = self._cells.get(call.actor) or self._wait_for_spawn(call.actor, envelope)
        if cell is not None:
            cell.deliver(Delivery(call.sender, envelope))
            if cell.is_ended:
                cell.turn_away()
        elif call.actor in self._ended:
            CellAnswers(self._ended[call.actor], self._host.node).give_back(call, None)

    def take_stop(self, envelope: Envelope[StopActor]) -> None:
        stop = envelope.message
        cell = self._cells.get(stop.actor)
        if cell is None:
            self._host.node.answer(stop)
            return
        if stop.seconds:
            loop = self._host.node.loop
            cell.ended.on_set(loop.call_later(stop.seconds, lambda: self._cut_off(cell)).cancel)
        cell.deliver(Delivery(stop.sender, envelope))
        if cell.is_ended:
            cell.turn_away()

    def _cut_off(self, cell: ActorCell) -> None:
        """Stop waiting for an actor, because the time to stop is up. An ``__init__`` that has not
        returned goes on, on its thread."""
        cell.cut_off()
        if not cell.is_made and not cell.is_ended:
            _log.warning(
                "%s was stopped while its __init__ was still running, which goes on until its "
                "process ends",
                cell.record.title,
            )
            self._host.cell_ending(cell)
            self._host.cell_ended(cell)
            cell.end()

    def _wait_for_spawn(self, actor: Uid, envelope: Envelope[Message]) -> ActorCell | None:
        with self.lock:
            cell = self._cells.get(actor)
            is_first = cell is None and actor not in self._early
            if cell is None and actor not in self._ended:
                self._early.setdefault(actor, []).append(envelope)
        spawn = self._on_demand.get(actor)
        if spawn is not None and is_first:
            spawn()
        return cell
