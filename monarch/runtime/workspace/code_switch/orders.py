"""The orders of a code switch that arrive from an owner, or from an author elsewhere."""

from __future__ import annotations

import msgspec

from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.runtime.workspace.code_switch.driver import CodeSwitch
from monarch.runtime.workspace.code_switch.open_order import OpenOrder
from monarch.runtime.workspace.reload_plan import ReloadPlan
from monarch.wire.address import Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import HeldUp, LeftBehind, Order, SwitchOrder, Waiting


class SwitchOrders:
    """Passes arriving orders to a process's ``CodeSwitch``, and sends its answers."""

    def __init__(self, agent: ProcAgent, switch: CodeSwitch) -> None:
        self._agent = agent
        self._node = agent.node
        self._switch = switch
        self._node.handle(Order, self._on_order, on_any_thread=True)
        self._node.handle(Waiting, self._on_waiting)
        self._node.handle(HeldUp, self._on_held_up)
        self._node.handle(LeftBehind, self._on_left_behind)

    def _on_order(self, envelope: Envelope[Order]) -> None:
        order = envelope.message
        asker, reply = self._asker(order.sender), self._answered(order)
        if order.kind is SwitchOrder.PREPARE:
            plan = ReloadPlan.decode(envelope.payload)
            self._switch.ordered_to_prepare(plan, asker, reply)
            if order.pid:
                author = self._node.address_of(asker)
                self._node.failure_detector.watch(
                    author, order.pid, lambda: self._author_left(asker)
                )
        elif order.kind is SwitchOrder.SWITCH:
            self._switch.ordered_to_switch(
                order.generation,
                asker,
                lambda switched: self._node.answer(order, msgspec.to_builtins(switched)),
            )
        else:
            # A fence goes up at once, on the receiving thread: that is its place.
            self._switch.obey(order, asker, reply)

    def _on_waiting(self, envelope: Envelope[Waiting]) -> None:
        message = envelope.message
        self._switch.waits(message.generation, message.busy, message.seconds)

    def _on_held_up(self, envelope: Envelope[HeldUp]) -> None:
        message = envelope.message
        self._switch.held_up(message.generation, message.attempt)

    def _on_left_behind(self, envelope: Envelope[LeftBehind]) -> None:
        message = envelope.message
        self._switch.left_behind(message.codes)

    def _asker(self, sender: Uid) -> Uid:
        """Return the process that gave an order; ``""`` if it is ourselves."""
        return sender if sender != self._node.uid else ""

    def _author_left(self, uid: Uid) -> None:
        self._switch.author_gone(uid)
        self._node.peer_down.left(uid)

    def _answered(self, order: Order) -> OpenOrder:
        return OpenOrder(lambda outcome: self._node.answer(order, msgspec.to_builtins(outcome)))
