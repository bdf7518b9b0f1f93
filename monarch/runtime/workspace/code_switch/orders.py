"""The orders of a code switch, as they arrive from an owner, or from an author elsewhere."""

from __future__ import annotations

import msgspec

from monarch.core.code_switch.table import Order, SwitchOrder
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.runtime.workspace.code_switch.driver import CodeSwitch
from monarch.runtime.workspace.code_switch.open_order import OpenOrder
from monarch.runtime.workspace.reload_plan import ReloadPlan
from monarch.wire.address import Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import (
    HeldUp,
    LeftBehind,
    Prepare,
    Revert,
    Step,
    StepName,
    Switch,
    Waiting,
)


class SwitchOrders:
    """Hands what arrives to a process's ``CodeSwitch``, and sends its answers."""

    def __init__(self, agent: ProcAgent, switch: CodeSwitch) -> None:
        self._agent = agent
        self._node = agent.node
        self._switch = switch
        self._node.handle(Prepare, self._on_prepare)
        self._node.handle(Switch, self._on_switch, on_any_thread=True)
        self._node.handle(Step, self._on_step)
        self._node.handle(Revert, self._on_revert)
        self._node.handle(Waiting, self._on_waiting)
        self._node.handle(HeldUp, self._on_held_up)
        self._node.handle(LeftBehind, self._on_left_behind)

    def _on_prepare(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Prepare)
        plan = ReloadPlan.decode(envelope.payload)
        asker = self._asker(order.sender)
        self._switch.ordered_to_prepare(plan, asker, self._answered(order.sender, order.port))
        if order.pid:
            author = self._node.address_of(asker)
            self._node.failure_detector.watch(author, order.pid, lambda: self._author_left(asker))

    def _on_switch(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Switch)
        # It goes up at once, on the receiving thread: that is its place.
        fence = Order(SwitchOrder.FENCE, order.generation, order.attempt, None)
        self._give(fence, order.sender, order.port)

    def _on_step(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Step)
        sender, port = order.sender, order.port
        if order.name is StepName.SWITCH:
            self._switch.ordered_to_switch(
                order.generation,
                self._asker(sender),
                lambda switched: self._node.answer(sender, port, msgspec.to_builtins(switched)),
            )
            return
        kind = SwitchOrder(order.name.value)
        step = Order(kind, order.generation, order.attempt, order.seconds, order.behind)
        self._give(step, sender, port)

    def _on_revert(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Revert)
        self._give(Order(SwitchOrder.REVERT, order.generation), order.sender, order.port)

    def _give(self, order: Order, sender: Uid, port: int) -> None:
        self._switch.obey(order, self._asker(sender), self._answered(sender, port))

    def _on_waiting(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, Waiting)
        self._switch.waits(message.generation, message.busy, message.seconds)

    def _on_held_up(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, HeldUp)
        self._switch.held_up(message.generation, message.attempt)

    def _on_left_behind(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, LeftBehind)
        self._switch.left_behind(message.codes)

    def _asker(self, sender: Uid) -> Uid:
        """The process that asks; ``""`` if it is ourselves."""
        return sender if sender != self._node.uid else ""

    def _author_left(self, uid: Uid) -> None:
        self._switch.author_gone(uid)
        self._node.peer_down.left(uid)

    def _answered(self, sender: Uid, port: int) -> OpenOrder:
        return OpenOrder(
            lambda outcome: self._node.answer(sender, port, msgspec.to_builtins(outcome))
        )
