"""The steps of a change of generation, as the owner asks for them, or an author elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from monarch.errors import format_remote
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.runtime.workspace.reload_plan import ReloadOutcome, ReloadPlan
from monarch.runtime.workspace.turnovers.turnover import Turnover
from monarch.wire.address import Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import HeldUp, LeftBehind, Prepare, Revert, Step, Switch, Waiting

__all__ = ["TurnoverOrders"]


class TurnoverOrders:
    """Takes what arrives to a process's ``Turnover``, and answers."""

    def __init__(self, agent: ProcAgent, turnover: Turnover) -> None:
        self._agent = agent
        self._node = agent.node
        self._turnover = turnover
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
        if order.pid:
            author = self._node.address_of(asker)
            self._node.lives.watch(author, order.pid, lambda: self._author_left(asker))
        self._in_background(order, lambda: self._turnover.prepare(plan, asker))

    def _on_switch(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Switch)
        number, attempt, turnover = order.generation, order.attempt, self._turnover
        if self._agent.is_root or not self._asker(order.sender):
            self._in_background(
                order,
                lambda: turnover.fence(number, attempt, order.seconds, is_held=order.is_held),
            )
        else:
            # The fence goes up at once, on the receiving thread: that is its place.
            self._in_background(order, turnover.fence_behind(order.sender, number, attempt))

    def _on_step(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Step)
        number, turnover = order.generation, self._turnover
        if order.name == "go" and turnover.replaces_any(number):
            self._in_background(order, lambda: turnover.go(number))
        elif order.name == "go":
            turnover.go(number)
            self._node.answer(order.sender, order.port, {})
        elif order.name == "resume":
            turnover.resume(number)
        elif order.name == "patch":
            self._in_background(order, lambda: turnover.patch(number, order.behind))
        elif order.name == "lift" and order.port:
            self._in_background(order, lambda: turnover.lift(number, order.attempt, order.seconds))
        elif order.name == "lift":
            turnover.lift(number, order.attempt, 0.0)
        else:
            self._in_background(order, lambda: turnover.halt(number, order.seconds))

    def _on_revert(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Revert)

        def revert() -> ReloadOutcome:
            self._turnover.revert(order.generation, self._asker(order.sender))
            return ReloadOutcome()

        self._in_background(order, revert)

    def _on_waiting(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, Waiting)
        self._turnover.waits(message.generation, message.text)

    def _on_held_up(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, HeldUp)
        self._turnover.held_up(message.generation, message.attempt)

    def _on_left_behind(self, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, LeftBehind)
        self._turnover.left_behind(message.codes)

    def _asker(self, sender: Uid) -> Uid:
        """Who asks; nobody, if it is ourselves."""
        return sender if sender != self._node.uid else ""

    def _author_left(self, uid: Uid) -> None:
        self._turnover.author_gone(uid)
        self._node.partings.forget_peer(uid)

    def _in_background(
        self, order: Prepare | Switch | Step | Revert, work: Callable[[], ReloadOutcome]
    ) -> None:
        """Do what takes time off the I/O thread, and answer with the outcome."""

        def run() -> None:
            try:
                body = msgspec.to_builtins(work())
            except Exception as error:
                text = f"{type(order).__name__} failed there: {format_remote(error)}"
                self._node.answer(order.sender, order.port, error=text)
            else:
                self._node.answer(order.sender, order.port, body)

        threading.Thread(target=run, name="monarch-reload", daemon=True).start()
