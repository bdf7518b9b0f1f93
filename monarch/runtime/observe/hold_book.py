"""The calls that stand in the procs of a host, or in those of a client: who knows of them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from monarch.core.holds import HeldTime, begun
from monarch.runtime.links.network import Gone
from monarch.runtime.node import Node
from monarch.wire.address import Uid
from monarch.wire.codec import Envelope
from monarch.wire.hold import HoldNote
from monarch.wire.message import HoldsAsked, HoldsChanged

_TOGETHER_SECONDS = 0.15


class HoldBook:
    """On the node's I/O loop. ``tell`` gets a sentence for each place at which calls begin to
    stand, once, and ``held`` hears whether any call stands."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._holds: dict[Uid, tuple[HoldNote, ...]] = {}
        self._known: set[str] = set()
        self._new: list[HoldNote] = []
        self.time = HeldTime()
        self.tell: Callable[[str], None] = lambda text: None
        self.on_held: Callable[[bool], None] = lambda is_held: None
        node.handle(HoldsChanged, self._on_changed)
        node.handle(HoldsAsked, self._on_asked)
        node.on_gone.append(self._forget_gone)

    def all(self) -> list[HoldNote]:
        """All that stand, or may stand again before their call ends. From any thread."""
        return [hold for holds in list(self._holds.values()) for hold in holds]

    def standing(self) -> list[HoldNote]:
        """Those that wait for a person. From any thread."""
        return [hold for hold in self.all() if hold.is_waiting]

    def seconds(self) -> float:
        """For how long clocks have stood still by now. From any thread."""
        return self.time.seconds(self._node.loop.time())

    def forget(self, proc: Uid) -> None:
        """It has ended, and what stood in it."""
        if self._holds.pop(proc, None) is not None:
            self._count()

    def _forget_gone(self, uid: Uid, how: Gone) -> None:
        if how is not Gone.EXPECTED and uid in self._holds:
            self._node.loop.call_soon(lambda: self.forget(uid))

    def _on_changed(self, envelope: Envelope) -> None:
        told = envelope.message
        assert isinstance(told, HoldsChanged)
        if told.holds:
            self._holds[told.proc] = told.holds
        else:
            self._holds.pop(told.proc, None)
        new = [hold for hold in told.holds if hold.is_waiting and hold.id not in self._known]
        if new:
            self._known.update(hold.id for hold in new)
            if not self._new:
                self._node.loop.call_later(_TOGETHER_SECONDS, self._tell_new)
            self._new += new
        self._count()

    def _count(self) -> None:
        is_held = bool(self.standing())
        if is_held != self.time.is_held:
            self.time.hold(is_held, self._node.loop.time())
            self.on_held(is_held)

    def _tell_new(self) -> None:
        new, self._new = self._new, []
        for sentence in begun(new):
            self.tell(sentence)

    def _on_asked(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, HoldsAsked)
        holds = [msgspec.to_builtins(hold) for hold in self.all()]
        at = {proc: self._node.address_of(proc) for proc in list(self._holds)}
        self._node.answer(order.sender, order.port, {"holds": holds, "procs": at})
