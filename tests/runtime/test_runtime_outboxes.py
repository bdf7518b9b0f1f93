"""What one process sends to another keeps its order, whatever of it has to wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch.config import configured
from monarch.core.call_table import CallTable
from monarch.runtime.links.outboxes import Outboxes
from monarch.wire.address import ProcAddress
from monarch.wire.codec import Envelope
from monarch.wire.message import PING, Call, Message, Order, Reply, SwitchOrder

THERE = ProcAddress("there")


class Loop:
    """Runs everything at once; senders are on it, so that they wait for nothing."""

    def is_current(self) -> bool:
        return True

    def call_soon(self, action: Callable[[], None]) -> bool:
        action()
        return True


class Wire:
    """The node that ``Outboxes`` sends by. ``sent`` has what has left: actors, and switches."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.casting = threading.RLock()
        self.address = ProcAddress("here")
        self.uid = "here"
        self.calls = CallTable()
        self.on_gone: list[Any] = []
        self.on_over: list[Any] = []
        self.sent: list[str] = []
        self.marks: list[int] = []

    def open_port(self, sink: Any, targets: list[str]) -> int:
        return self.calls.open(sink)

    def way_to(self, to: ProcAddress) -> Callable[[Envelope[Message]], None]:
        return self._leave

    def transmit(self, to: ProcAddress, envelope: Envelope[Message]) -> None:
        self._leave(envelope)

    def _leave(self, envelope: Envelope[Message]) -> None:
        message = envelope.message
        if not isinstance(message, Call):
            self.sent.append(type(message).__name__)
        elif message.method == PING:
            self.marks.append(message.port)
        else:
            self.sent.append(message.actor)

    def take(self) -> None:
        """The receiver takes all that it has."""
        while self.marks:
            self.calls.receive(self.marks.pop(0), 0, None)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with configured(flow_window_messages=2):
        yield Wire()


@pytest.fixture
def outboxes(wire: Wire) -> Iterator[Outboxes]:
    made = Outboxes(wire, wire, None)  # type: ignore[arg-type]
    yield made
    made.close()


def call(outboxes: Outboxes, actor: str) -> None:
    outboxes.hand(THERE, Call(actor=actor, method="act", rank=0, sender="here"), b"", ())


def test_the_first_call_to_an_actor_does_not_overtake_a_switch_that_waits(
    wire: Wire, outboxes: Outboxes
) -> None:
    """It would run the old code on this rank, and the new on those that are not behind."""
    for _ in range(3):
        call(outboxes, "slow")
    assert outboxes.keep_place(THERE, Envelope("there", Order(SwitchOrder.FENCE, 1, sender="here")))
    call(outboxes, "new")
    call(outboxes, "slow")
    assert wire.sent == ["slow", "slow"]
    while wire.marks:
        wire.take()
    assert wire.sent[:4] == ["slow", "slow", "slow", "Order"]
    assert sorted(wire.sent[4:]) == ["new", "slow"]
    assert not outboxes.is_spilling


def test_a_value_for_a_channel_passes_a_switch_that_waits(wire: Wire, outboxes: Outboxes) -> None:
    """The slow actor may be waiting for it."""
    for _ in range(3):
        call(outboxes, "slow")
    assert outboxes.keep_place(THERE, Envelope("there", Order(SwitchOrder.FENCE, 1, sender="here")))
    outboxes.put(THERE, Reply(7, 0, "here"), b"", ())
    assert wire.sent[:3] == ["slow", "slow", "Reply"]
    assert "Order" not in wire.sent


def test_a_switch_that_is_withdrawn_lets_go_who_has_come_to_it(
    wire: Wire, outboxes: Outboxes
) -> None:
    for _ in range(3):
        call(outboxes, "slow")
    assert outboxes.keep_place(THERE, Envelope("there", Order(SwitchOrder.FENCE, 1, sender="here")))
    call(outboxes, "new")
    outboxes.keep_place(
        THERE,
        Envelope(
            "there",
            Order(SwitchOrder.LIFT, 1, attempt=1, sender="here"),
        ),
    )
    assert wire.sent == ["slow", "slow", "new"]
    while wire.marks:
        wire.take()
    assert wire.sent == ["slow", "slow", "new", "slow", "Order"]
    assert not outboxes.is_spilling
