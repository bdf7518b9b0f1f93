"""One process on the network: its address, its peers, its ports.

Everything that a process sends or receives goes through its node. The agents register handlers for
the messages.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from monarch.config import settings
from monarch.core.call_table import CallTable, Sink
from monarch.core.event_ring import EventRing
from monarch.errors import MeshFailure, WireError
from monarch.net.io_loop import IoLoop
from monarch.net.loop import Loop
from monarch.net.machine import machine_id
from monarch.net.rare_log import RareLog
from monarch.net.transport import Frames, Receive, Transport
from monarch.net.transports import Transports
from monarch.runtime.answers import Answers, AnswerSink, Response
from monarch.runtime.links.address_book import AddressBook
from monarch.runtime.links.bulk_receiver import BulkReceiver
from monarch.runtime.links.bulk_sender import BULK_BYTES, BulkSender
from monarch.runtime.links.failure_detector import FailureDetector
from monarch.runtime.links.network import Gone
from monarch.runtime.links.outboxes import Outboxes
from monarch.runtime.links.peer import Peer
from monarch.runtime.links.peer_down import PeerDown
from monarch.runtime.links.trees import Trees
from monarch.runtime.links.waiting_switches import ends_fence
from monarch.runtime.promise import Promise
from monarch.runtime.run_gate import RunGate
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Bytes, Envelope, M_co, OtherVersion, as_text, pack, unpack
from monarch.wire.keys import JobKeys
from monarch.wire.message import (
    Answer,
    Message,
    Order,
    ProcDown,
    Reply,
    Request,
    StopSelf,
    answer_type,
)

_log = logging.getLogger("monarch.node")

if TYPE_CHECKING:
    from monarch.net.gateway import Gateway

A = TypeVar("A")
Handler = Callable[[Envelope[Any]], None]


class Node:
    """The network node of this process: its address, connections and ports.

    A simulation passes a ``loop`` with a clock of its own, ``transport``, which makes a transport
    from a loop and a receiver, and the name of a ``machine`` whose pids mean nothing here. ``life``
    counts the processes that had this uid before.
    """

    def __init__(
        self,
        uid: Uid,
        keys: JobKeys | None = None,
        *,
        loop: Loop | None = None,
        transport: Callable[[Loop, Receive], Transport] | None = None,
        machine: str = "",
        life: int = 0,
    ) -> None:
        #: The number of processes that had this uid before.
        self.life = life
        #: The I/O loop: it runs handlers, timers, and what other threads give it.
        self.loop: Loop = loop or IoLoop()
        #: The keys for connections over TCP; None if the job has no secret.
        self.keys = keys
        #: How others reach this process; replaced when it listens at another URL.
        self.address = ProcAddress(uid, machine=machine or machine_id())
        #: The open ports, and the sinks that wait at them.
        self.calls = CallTable(life)
        #: The generation of the code that runs here, and which calls it may run.
        self.gate = RunGate(uid)
        num_events = settings().telemetry_events
        #: The last events of this process; None if none are recorded.
        self.ring = EventRing(num_events, time.monotonic_ns) if num_events > 0 else None
        #: Held while one message goes to many receivers, so that two casts of this process
        #: reach all of them in the same order.
        self.casting = threading.RLock()
        #: Called for a message of an actor here that was not delivered, with the actor, the
        #: receiver, the method and the reason.
        self.on_undelivered: Callable[[Uid, str, str, str], None] = lambda *undelivered: None
        self._handlers: dict[type, Handler] = {}
        #: The messages to ourselves that are handled on the sender's thread.
        self._on_any_thread: set[type] = {Reply}
        self._transport = (transport or self._over_sockets)(self.loop, self._receive)
        #: Entries that make the parts of this node forget a process; run on any thread.
        self.on_gone: list[Callable[[Uid, Gone], None]] = []
        self._rare = RareLog(_log)
        self._is_closed = False
        #: The gateway through which other machines are reached; None for a direct way.
        self.gateway: Gateway | None = None
        #: Whether the user allows TCP beyond loopback without keys.
        self.is_insecure = False
        self.failure_detector = FailureDetector(self)
        self.address_book = AddressBook(self, self.failure_detector, self._transport.connect)
        self.trees = Trees(self, self.address_book)
        self.bulk_sender = BulkSender(self)
        self.outboxes = Outboxes(self, self.trees, self.bulk_sender)
        self.bulk_receiver = BulkReceiver(self, self.bulk_sender.room)
        self.peer_down = PeerDown(self, self.address_book, self.trees)
        #: Messages that wait for the bulk of an earlier one, by sender; the receiver changes it.
        self._held_back = self.bulk_receiver.order.waiting
        Answers(self, self.failure_detector)

    def _over_sockets(self, loop: Loop, receive: Receive) -> Transport:
        assert isinstance(loop, IoLoop), "sockets need a loop of the operating system"
        return Transports(
            loop,
            receive,
            self.keys,
            max_message_bytes=settings().max_message_bytes,
            max_frame_bytes=settings().max_frame_bytes,
        )

    @property
    def uid(self) -> Uid:
        return self.address.uid

    def start(self) -> None:
        self.loop.start()
        self.failure_detector.start()

    def listen(self, url: str, advertise: str = "") -> str:
        """Listen at ``url``, and return the URL that other processes are told.

        It has the host of ``advertise``, if that is given.
        """
        # On the loop, so that the address has the URL before anything is received.
        return self.loop.run_on_loop(lambda: self._listen(url, advertise))  # type: ignore[no-any-return]

    def _listen(self, url: str, advertise: str) -> str:
        if self._is_closed:
            raise RuntimeError("this process has left the network")
        bound = self._transport.listen(url)
        if bound.startswith("ipc://"):
            self.bulk_receiver.open_door(bound)
        if self.gateway is not None and advertise:
            bound = advertise
        elif advertise.startswith("tcp://"):
            bound = f"{advertise.rpartition(':')[0]}:{bound.rpartition(':')[2]}"
        self.address = msgspec.structs.replace(self.address, urls=(*self.address.urls, bound))
        return bound

    def use_keys(self, keys: JobKeys) -> None:
        """Use these keys over TCP from now on."""
        self.keys = keys
        self._transport.use_keys(keys)

    def allow_insecure(self) -> None:
        """Allow listening beyond loopback without keys from now on, as the user asked."""
        self.is_insecure = True
        self._transport.allow_insecure()

    def reach_at(self, url: str, local_url: str) -> None:
        """Connect to ``local_url`` whenever others would connect to ``url``."""
        assert isinstance(self._transport, Transports)
        self._transport.reach_at(url, local_url)

    def use_gateway(self, gateway: Gateway) -> None:
        """Reach other machines through a gateway from now on; a message for many of them is sent to
        it once.
        """
        assert isinstance(self._transport, Transports)
        self.gateway = gateway
        self.trees.first_degree = 1
        self._transport.go_by(gateway.way_to)

    def replace_address(self, **changes: Any) -> None:
        self.address = msgspec.structs.replace(self.address, **changes)

    def handle(
        self,
        kind: type[M_co],
        handler: Callable[[Envelope[M_co]], None],
        *,
        on_any_thread: bool = False,
    ) -> None:
        """Call ``handler`` for messages of ``kind``.

        A message to ourselves is handled on the I/O loop, unless ``on_any_thread``: then at
        once, on the sender's thread.
        """
        self._handlers[kind] = handler
        if on_any_thread:
            self._on_any_thread.add(kind)

    def on(self, kind: type[M_co], handler: Callable[[M_co], None]) -> None:
        """Call ``handler`` with each message of ``kind``, on the I/O loop. `handle` is for handlers
        that need the message's payload too."""
        self.handle(kind, lambda envelope: handler(envelope.message))

    def ask_on_loop(
        self, to: ProcAddress, request: Request[A], done: Callable[[Response[A]], None]
    ) -> None:
        """Send a request; call ``done`` with the response, on the I/O loop and never at once."""
        response = self.ask(to, request)

        def answered() -> None:
            self.loop.call_soon(lambda: done(response.value))

        response.on_set(answered)

    def send(
        self, to: ProcAddress, message: Message, payload: Bytes = b"", buffers: Any = ()
    ) -> None:
        """Send a message. Messages to one receiver keep their order. Never waits for the
        receiver."""
        envelope = Envelope(to.uid, message, payload, buffers)
        if self.outboxes.is_spilling and self.outboxes.keep_place(to, envelope):
            return
        if to.uid == self.address.uid:
            if buffers:
                envelope = Envelope(to.uid, message, payload, self.bulk_sender.take(buffers))
            if type(message) in self._on_any_thread:
                self.dispatch(envelope)
            else:
                self.loop.call_soon(lambda: self._try(envelope))
            return
        if not self.trees.send(to, envelope):
            self.transmit(to, envelope)
        elif isinstance(message, Order) and message.gives_way:
            self.peer_down.held_from[to.uid] = self.calls.next_port()
        elif ends_fence(message):
            self.peer_down.held_from.pop(to.uid, None)

    def transmit(self, to: ProcAddress, envelope: Envelope[Message]) -> None:
        """Hand a message to the connection with another process."""
        peer = self.address_book.meet(to)
        message = envelope.message
        if ends_fence(message):
            peer.release()
            self.peer_down.held_from.pop(to.uid, None)
        is_past = isinstance(message, StopSelf) or (
            isinstance(message, Order) and message.is_behind_fence
        )
        if is_past and peer.send_past(pack(envelope)):
            return
        self._carry(peer, envelope)
        if isinstance(message, Order) and message.gives_way:
            peer.hold()
            self.peer_down.held_from[to.uid] = self.calls.next_port()

    def _carry(self, peer: Peer, envelope: Envelope[Message]) -> None:
        if envelope.buffers or len(envelope.payload) >= BULK_BYTES:
            self.bulk_sender.send(peer, envelope)
        else:
            peer.send(pack(envelope))

    def way_to(self, to: ProcAddress) -> Callable[[Envelope[Message]], None]:
        """Return a function that sends messages to a process, until another process takes its uid.

        The function copies borrowed buffers before it returns.
        """
        if to.uid == self.address.uid:
            return self._carry_here
        return functools.partial(self._carry, self.address_book.meet(to))

    def _carry_here(self, envelope: Envelope[Message]) -> None:
        if envelope.buffers:
            envelope = msgspec.structs.replace(
                envelope, buffers=self.bulk_sender.take(envelope.buffers)
            )
        self.dispatch(envelope)

    def report_down(self, down: ProcDown) -> None:
        """Handle the end of a process."""
        self.peer_down.report(down)

    def peer_left(self, uid: Uid) -> None:
        """Forget a process that has left as planned."""
        self.peer_down.left(uid)

    def failure_of(self, uid: Uid) -> MeshFailure | None:
        """Return why a process is gone; ``None`` if it is not known to be gone."""
        return self.address_book.failure_of(uid)

    def address_of(self, uid: Uid) -> ProcAddress:
        """Return the address of a process that has introduced itself."""
        return self.address_book.address_of(uid)

    def open_port(self, sink: Sink, targets: list[Uid]) -> int:
        """Open a port for answers from ``targets``, and return its number.

        If a target is dead already, the wait for answers may end at once. Call it before sending:
        then no target's death is missed.
        """
        port = self.calls.open(sink)
        for uid in targets:
            failure = self.failure_of(uid)
            if failure is not None and sink.down(uid, failure):
                self.calls.close(port)
                break
        return port

    def ask(
        self,
        to: ProcAddress,
        request: Request[A],
        payload: Bytes = b"",
        buffers: Any = (),
        *,
        via: ProcAddress | None = None,
    ) -> Promise[Response[A]]:
        """Send a request; return a promise of its response.

        With ``via``, a proc of the host agent ``to``, the request keeps its order among the
        messages to that proc.
        """
        sink: AnswerSink[A] = AnswerSink(to.uid, answer_type(type(request)))
        port = self.open_port(sink, [to.uid])
        if not sink.promise.is_set:
            request = msgspec.structs.replace(request, port=port, sender=self.uid)
            self.send(via or to, request, payload, buffers)
        return sink.promise

    def order(
        self, to: ProcAddress, request: Request[Any], payload: Bytes = b"", buffers: Any = ()
    ) -> None:
        """Send a request whose answer nobody waits for."""
        self.send(to, msgspec.structs.replace(request, sender=self.uid), payload, buffers)

    def answer(self, request: Request[A], body: A | None = None, error: str = "") -> None:
        """Answer a request. With ``port`` 0 nothing is sent, because no answer is expected."""
        if not request.port:
            return
        asker = request.asker
        address = asker if isinstance(asker, ProcAddress) else self.address_of(asker)
        try:
            self.send(address, Answer(request.port, self.uid, body, error))
        except UnicodeEncodeError:
            # It names a file whose name is no valid text.
            text = as_text(msgspec.to_builtins(body))
            self.send(address, Answer(request.port, self.uid, text, as_text(error)))

    def _receive(self, frames: Frames) -> None:
        try:
            envelope = unpack(frames)
        except OtherVersion as error:
            self.address_book.met_other_version(error)
            raise
        if envelope.route not in ("", self.address.uid):
            raise WireError(f"it is for another process ({envelope.route[:20]!r})")
        if self._held_back:
            self.receive(envelope)
        else:
            self._try(envelope)

    def _try(self, envelope: Envelope[Message]) -> None:
        """Handle a message. An exception is logged, and sent as the answer if the sender waits for
        one.
        """
        try:
            self.dispatch(envelope)
        except Exception as error:
            message = envelope.message
            name = type(message).__name__
            self._rare.exception((name, type(error)), "could not handle a message (%s)", name)
            if isinstance(message, Request):
                self.answer(message, error=f"it failed there: {type(error).__name__}: {error}")

    def receive(self, envelope: Envelope[Message]) -> None:
        """Handle a whole message in its sender's order. On the I/O loop."""
        if not (self._held_back and self.bulk_receiver.hold_back(envelope)):
            self._try(envelope)

    def dispatch(self, envelope: Envelope[Message]) -> None:
        handler = self._handlers.get(type(envelope.message))
        if handler is None:
            name = type(envelope.message).__name__
            self._rare.warning(name, "such a message has no handler here (%s)", name)
            return
        handler(envelope)

    def close(self) -> None:
        """Leave the network: close all connections, and stop the loop. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self.failure_detector.stop()
        with contextlib.suppress(Exception):
            self.loop.run_on_loop(self.failure_detector.close, timeout=1.0)
        self.outboxes.close()
        with contextlib.suppress(Exception):
            self.loop.run_on_loop(self.bulk_receiver.close, timeout=1.0)
        with contextlib.suppress(Exception):
            self._transport.close()
        if self.gateway is not None:
            self.gateway.close()  # Last: what was sent goes through it.
        self.bulk_sender.close()
        self.loop.stop()
