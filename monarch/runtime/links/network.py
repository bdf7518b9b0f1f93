"""The interface through which the parts of a node use it, and each other."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from typing import Protocol

from monarch.core.call_table import CallTable, Sink
from monarch.errors import MeshFailure
from monarch.net.loop import Loop
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Envelope, M_co
from monarch.wire.message import Message, ProcDown


class Gone(enum.Enum):
    """Why a process has left the network, or why messages to it no longer matter."""

    DOWN = "it has failed or ended, or a host was lost with it"
    LEFT = "it lives on, and keeps what it holds; nothing more is sent to it"
    EXPECTED = "a process of its uid is about to start"
    REPLACED = "a new process of its uid has come; messages to the old one are lost"
    HANDED_OVER = "a new process of its uid has come, and gets the messages that were kept"


class Network(Protocol):
    """The node's interface for its parts.

    A part that keeps uids adds a function to ``on_gone``, which makes it forget a uid. These
    functions run on any thread.
    """

    life: int
    loop: Loop
    calls: CallTable
    address: ProcAddress
    casting: threading.RLock
    on_gone: list[Callable[[Uid, Gone], None]]

    @property
    def uid(self) -> Uid: ...

    def handle(self, kind: type[M_co], handler: Callable[[Envelope[M_co]], None]) -> None: ...

    def on(self, kind: type[M_co], handler: Callable[[M_co], None]) -> None: ...

    def open_port(self, sink: Sink, targets: list[Uid]) -> int: ...

    def send(self, to: ProcAddress, message: Message) -> None: ...

    def transmit(self, to: ProcAddress, envelope: Envelope[Message]) -> None: ...

    def way_to(self, to: ProcAddress) -> Callable[[Envelope[Message]], None]: ...

    def receive(self, envelope: Envelope[Message]) -> None: ...

    def dispatch(self, envelope: Envelope[Message]) -> None: ...

    def failure_of(self, uid: Uid) -> MeshFailure | None: ...

    def address_of(self, uid: Uid) -> ProcAddress: ...

    def report_down(self, down: ProcDown) -> None: ...

    def peer_left(self, uid: Uid) -> None: ...
