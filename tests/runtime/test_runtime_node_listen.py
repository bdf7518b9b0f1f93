"""A process that can be reached can also be answered."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from monarch.net.loop import Loop
from monarch.net.transport import Connection, Receive
from monarch.runtime.node import Node
from monarch.wire.address import ProcAddress
from monarch.wire.codec import Envelope, pack
from monarch.wire.message import Introduce, Message

URL = "ipc:///nowhere/here"


class Eager:
    """A transport that has a message for whoever begins to listen, and time to hand it over."""

    def __init__(self, loop: Loop, receive: Receive) -> None:
        self._loop = loop
        self._receive = receive
        self.was_handed_over = threading.Event()

    def listen(self, url: str) -> str:
        introduce = Envelope("", Introduce(ProcAddress("stranger")))
        frames = [bytes(part) for part in pack(introduce)]
        self._loop.call_soon(lambda: self._hand_over(frames))
        self.was_handed_over.wait(0.1)
        return url

    def _hand_over(self, frames: list[bytes]) -> None:
        self._receive(frames)
        self.was_handed_over.set()

    def connect(self, url: str) -> Connection:
        raise AssertionError("nobody connects here")

    def close(self) -> None:
        pass


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node("here", transport=Eager)  # type: ignore[arg-type]
    node.start()
    yield node
    node.close()


def test_nothing_is_received_before_the_address_says_where(node: Node) -> None:
    known: list[tuple[str, ...]] = []
    received = threading.Event()

    def note(envelope: Envelope[Message]) -> None:
        known.append(node.address.urls)
        received.set()

    node.handle(Introduce, note)
    node.listen(URL)
    assert received.wait(10)
    assert known == [(URL,)]
