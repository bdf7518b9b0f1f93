"""The orders of a code switch, as they arrive from an owner, or from an author elsewhere."""

from __future__ import annotations

import os

import msgspec

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
    Settle,
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
        self._node.handle(Settle, self._on_settle)
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
        # A fence of our owner goes up at once, on the receiving thread: that is its place. Other
        # authors have theirs cast in our own order.
        is_own = self._agent.is_root or not self._asker(order.sender)
        self._switch.ordered_to_fence(
            order.generation,
            order.attempt,
            order.seconds if is_own else None,
            self._asker(order.sender),
            self._answered(order.sender, order.port),
            is_held=order.is_held,
        )

    def _on_step(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Step)
        number, switch = order.generation, self._switch
        asker = self._asker(order.sender, order.instead_of)
        answer = self._answered(order.sender, order.port)
        if order.name is StepName.GO:
            switch.ordered_to_go(number, asker, answer)
        elif order.name is StepName.RESUME:
            switch.ordered_to_resume(number, asker)
        elif order.name is StepName.PATCH:
            switch.ordered_to_patch(number, order.behind, asker, answer)
        elif order.name is StepName.LIFT:
            switch.ordered_to_lift(number, order.attempt, order.seconds, asker, answer)
        elif order.name is StepName.INQUIRE:
            switch.asked_how_far(number, asker, answer)
        else:
            switch.ordered_to_halt(number, order.seconds, asker, answer)

    def _on_revert(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Revert)
        answer = self._answered(order.sender, order.port)
        asker = self._asker(order.sender, order.instead_of)
        self._switch.ordered_to_revert(order.generation, asker, answer)

    def _on_settle(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Settle)
        node = self._node
        self._switch.succeeding.asked(
            ReloadPlan.decode(envelope.payload),
            order.author,
            OpenOrder(lambda _: node.answer(order.sender, order.port, {"pid": os.getpid()})),
            owner=node.address_of(order.sender),
            pid=order.pid,
        )

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

    def _asker(self, sender: Uid, instead_of: Uid = "") -> Uid:
        """The process that asks; ``""`` if it is ourselves."""
        return instead_of or (sender if sender != self._node.uid else "")

    def _author_left(self, uid: Uid) -> None:
        self._switch.author_gone(uid)
        self._node.peer_down.left(uid)

    def _answered(self, sender: Uid, port: int) -> OpenOrder:
        return OpenOrder(
            lambda outcome: self._node.answer(sender, port, msgspec.to_builtins(outcome))
        )
