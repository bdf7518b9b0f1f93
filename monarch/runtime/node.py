"""One process on the network: its address, its peers, its ports.

Everything that a process sends or receives goes through its node. What the messages mean is
decided by the agents that register for them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from monarch.config import settings
from monarch.core.call_table import CallTable, Sink
from monarch.errors import MeshFailure, WireError
from monarch.net.io_loop import IoLoop
from monarch.net.loop import Loop
from monarch.net.rare_log import RareLog
from monarch.net.transport import Frames, Receive, Transport
from monarch.net.transports import Transports
from monarch.runtime.answers import Answers, AnswerSink, Outcome
from monarch.runtime.bulk_receiver import BulkReceiver
from monarch.runtime.bulk_sender import BULK_BYTES, BulkSender
from monarch.runtime.life_lines import LifeLines
from monarch.runtime.outgoing import Outgoing, ends_switch
from monarch.runtime.peer import Peer
from monarch.runtime.peer_table import PeerTable
from monarch.runtime.promise import Promise
from monarch.runtime.run_gate import RunGate
from monarch.runtime.trees import Trees
from monarch.wire.address import ProcAddress, Uid, machine_id
from monarch.wire.codec import Bytes, Envelope, pack, unpack
from monarch.wire.keys import JobKeys
from monarch.wire.message import (
    PROTOCOL_VERSION,
    Answer,
    AnyMessage,
    Attach,
    Call,
    Chunk,
    Consignment,
    Credit,
    Heartbeat,
    Hello,
    Introduce,
    Parcel,
    PortMark,
    ProcAgain,
    ProcDown,
    ProcsDown,
    ProcUp,
    Replies,
    Reply,
    Retire,
    Step,
    StopSelf,
    Switch,
    Watch,
)

__all__ = ["Node"]

_log = logging.getLogger("monarch.node")

_MAX_INTRODUCED = 10_000

Handler = Callable[[Envelope], None]


class Node:
    """The end of the network in this process.

    A simulation passes a ``loop`` with a clock of its own, ``transport``, which makes one for a
    loop and a receiver, and the name of a ``machine`` whose pids mean nothing here. ``life`` counts
    the processes that had this uid before.
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
        self.life = life
        self.loop: Loop = loop or IoLoop()
        self.keys = keys
        self.address = ProcAddress(uid, machine=machine or machine_id())
        self.calls = CallTable(life)
        self.gate = RunGate(uid)
        # Held while one message goes to many receivers, so that two casts of this process
        # reach all of them in the same order.
        self.casting = threading.RLock()
        self.on_peer_down: list[Callable[[Uid, ProcDown], None]] = []
        # A process has given way to a new one of its uid.
        self.on_peer_again: list[Callable[[ProcAgain], None]] = []
        # Deaths of one cause, together, before they are told one by one.
        self.on_deaths: list[Callable[[Sequence[ProcDown], str], None]] = []
        # Of an actor here, a message was not delivered: to whom, the method, and why.
        self.on_undelivered: Callable[[Uid, str, str, str], None] = lambda *about: None
        self.on_host_met: Callable[[ProcAddress], None] = lambda host: None
        self._peers = PeerTable()
        self._introduced: dict[Uid, ProcAddress] = {}
        self._lock = threading.Lock()
        self._handlers: dict[type, Handler] = {}
        self._anywhere: set[type] = {Reply}
        self._transport = (transport or self._over_sockets)(self.loop, self._receive)
        self.lives = LifeLines(self)
        self._ending: set[Uid] = set()
        self._held_from: dict[Uid, int] = {}
        self._watched: set[Uid] = set()
        # Who calls us may own what is here, and may be called back: its death matters.
        self.watches_callers = False
        self._rare = RareLog(_log)
        self._closed = False
        self.is_insecure = False
        self.trees = Trees(self)
        self.outgoing = Outgoing(self, self.trees)
        self.on_peer_down.append(self.trees.host_down)
        self.handle(Hello, self._on_hello)
        answers = Answers(self)
        self.handle(Reply, answers.on_reply)
        self.handle(Replies, answers.on_replies)
        self.handle(Answer, answers.on_answer)
        self.handle(PortMark, answers.on_port_mark)
        self.handle(ProcUp, self._on_proc_up)
        self.handle(ProcDown, self._on_proc_down)
        self.handle(ProcsDown, self._on_procs_down)
        self.handle(ProcAgain, self._on_proc_again)
        self.handle(Heartbeat, self.lives.on_heartbeat)
        self.handle(Introduce, self._on_introduce)
        self.bulk_sender = BulkSender(self)
        self.bulk_receiver = BulkReceiver(self, self.bulk_sender.room)
        self._held_back = self.bulk_receiver.order.waiting
        self.handle(Parcel, self.bulk_receiver.on_parcel)
        self.handle(Consignment, self.bulk_receiver.on_consignment)
        self.handle(Chunk, self.bulk_receiver.on_chunk)
        self.handle(Credit, self.bulk_sender.on_credit)
        self.handle(Retire, self.bulk_receiver.on_retire)

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
        self.lives.start()

    def listen(self, url: str, advertise: str = "") -> str:
        """Receive at ``url``; others are told the host of ``advertise`` where it is given."""
        # On the loop, so that nothing is received, and no address given away, without the url.
        return self.loop.run_on_loop(lambda: self._listen(url, advertise))  # type: ignore[no-any-return]

    def _listen(self, url: str, advertise: str) -> str:
        if self._closed:
            raise RuntimeError("this process has left the network")
        bound = self._transport.listen(url)
        if bound.startswith("ipc://"):
            self.bulk_receiver.open_door(bound)
        if advertise.startswith("tcp://"):
            bound = f"{advertise.rpartition(':')[0]}:{bound.rpartition(':')[2]}"
        self.address = msgspec.structs.replace(self.address, urls=(*self.address.urls, bound))
        return bound

    def use_keys(self, keys: JobKeys) -> None:
        """Speak with these keys over TCP from here on."""
        self.keys = keys
        self._transport.use_keys(keys)

    def allow_insecure(self) -> None:
        """Listen beyond loopback without keys from here on, on the user's own word."""
        self.is_insecure = True
        self._transport.allow_insecure()

    def replace_address(self, **changes: Any) -> None:
        self.address = msgspec.structs.replace(self.address, **changes)

    def handle(self, kind: type, handler: Handler, *, on_any_thread: bool = False) -> None:
        """Call ``handler`` for messages of ``kind``.

        A message to ourselves is handled on the I/O loop, unless ``on_any_thread``: then at
        once, on the sender's thread.
        """
        self._handlers[kind] = handler
        if on_any_thread:
            self._anywhere.add(kind)

    def send(
        self, to: ProcAddress, message: AnyMessage, payload: Bytes = b"", buffers: Any = ()
    ) -> None:
        """Send a message. In order for each receiver; never waits for it."""
        envelope = Envelope(to.uid, message, payload, buffers)
        if self.outgoing.is_spilling and self.outgoing.keep_place(to, envelope):
            return
        if to.uid == self.address.uid:
            if buffers:
                envelope = Envelope(to.uid, message, payload, self.bulk_sender.take(buffers))
            if type(message) in self._anywhere:
                self.dispatch(envelope)
            else:
                self.loop.call_soon(lambda: self._try(envelope))
            return
        if not self.trees.send(to, envelope):
            self.transmit(to, envelope)
        elif isinstance(message, Switch) and message.holds:
            self._held_from[to.uid] = self.calls.next_port()
        elif ends_switch(message):
            self._held_from.pop(to.uid, None)

    def transmit(self, to: ProcAddress, envelope: Envelope) -> None:
        """Hand a message to the connection with another process."""
        peer = self._peers.get(to.uid) or self._meet(to)
        message = envelope.message
        if ends_switch(message):
            peer.release()
            self._held_from.pop(to.uid, None)
        elif isinstance(message, StopSelf | Step) and peer.send_past(pack(envelope)):
            return
        self._carry(peer, envelope)
        if isinstance(message, Switch) and message.holds:
            peer.hold()
            self._held_from[to.uid] = self.calls.next_port()

    def _carry(self, peer: Peer, envelope: Envelope) -> None:
        if envelope.buffers or len(envelope.payload) >= BULK_BYTES:
            self.bulk_sender.send(peer, envelope)
        else:
            peer.send(pack(envelope))

    def way_to(self, to: ProcAddress) -> Callable[[Envelope], None]:
        """What takes messages for a process, as long as it is known as it is now.

        Buffers that are borrowed have been taken when it returns.
        """
        if to.uid == self.address.uid:
            return self._carry_here
        return functools.partial(self._carry, self._peers.get(to.uid) or self._meet(to))

    def _carry_here(self, envelope: Envelope) -> None:
        if envelope.buffers:
            envelope = envelope._replace(buffers=self.bulk_sender.take(envelope.buffers))
        self.dispatch(envelope)

    def failure_of(self, uid: Uid) -> MeshFailure | None:
        """Why a process is gone; ``None`` for one that is not known to be."""
        peer = self._peers.get(uid)
        return None if peer is None else peer.failure

    def open_port(self, sink: Sink, targets: list[Uid]) -> int:
        """A port for answers from ``targets``. Those already dead end the wait at once.

        Call before sending: a death is then seen either here or by the sweep that follows it.
        """
        port = self.calls.open(sink)
        for uid in targets:
            failure = self.failure_of(uid)
            if failure is not None and sink.down(uid, failure):
                self.calls.close(port)
                break
        return port

    def request(
        self,
        to: ProcAddress,
        make: Callable[[int], AnyMessage],
        payload: Bytes = b"",
        buffers: Any = (),
        *,
        via: ProcAddress | None = None,
    ) -> Promise[Outcome]:
        """Send a control message, made from the number of the port that awaits its answer.

        ``via`` is a proc of the host agent ``to`` whose way the message takes, to keep its place.
        """
        sink = AnswerSink(to.uid)
        port = self.open_port(sink, [to.uid])
        if not sink.promise.is_set:
            self.send(via or to, make(port), payload, buffers)
        return sink.promise

    def answer(
        self,
        to: ProcAddress | Uid,
        port: int,
        body: dict[str, Any] | None = None,
        error: str = "",
    ) -> None:
        """Answer a control message. ``port`` 0 means that nobody waits."""
        if port:
            address = to if isinstance(to, ProcAddress) else self.address_of(to)
            self.send(address, Answer(port, self.uid, body or {}, error))

    def address_of(self, uid: Uid) -> ProcAddress:
        """The address of a process that has introduced itself."""
        if uid == self.uid:
            return self.address
        peer = self._peers.get(uid)
        if peer is not None:
            return peer.address
        return self._introduced.get(uid, ProcAddress(uid))

    def introduce(self, address: ProcAddress) -> None:
        """Know where a process is that we have not met, in case it must be answered."""
        self._introduced[address.uid] = address
        if len(self._introduced) > _MAX_INTRODUCED:
            self._introduced.pop(next(iter(self._introduced)))

    def expect(self, address: ProcAddress) -> Peer:
        """A process that will come up; what is sent to it meanwhile is kept.

        Whatever was known of an earlier process of that uid is forgotten.
        """
        peer = self._peers.replace(address)
        self.outgoing.down(address.uid)
        self._ending.discard(address.uid)
        if address.host_uid not in ("", address.uid, self.uid):
            self.on_host_met(_host_of(address))
        return peer

    def _meet(self, address: ProcAddress) -> Peer:
        with self._lock:
            address = self._introduced.get(address.uid, address)
            peer, is_new = self._peers.find(address)
            if not is_new:
                return peer
            self._introduced.pop(address.uid, None)
        if address.urls:
            self._open(peer, address)
        if address.host_uid == self.uid != address.uid:
            # Told of its end as its host agent; but if that was long ago, we may have forgotten.
            self.send(self.address, Watch(address.uid, self.address))
        self._watch(address)
        return peer

    def _watch(self, address: ProcAddress) -> None:
        """Hear of a proc's death, from its host agent."""
        if address.uid in self._watched or address.host_uid in ("", address.uid, self.uid):
            return
        self._watched.add(address.uid)
        host = _host_of(address)
        if self.failure_of(host.uid) is not None:
            # Lost once; somebody who was given a proc on it may know that it is back. If it is not,
            # nobody answers for the proc, and only the silence tells.
            self.forget_peer(host.uid)
            self.lives.expect(host.uid)
        self.send(host, Watch(address.uid, self.address))
        self.on_host_met(host)

    def _open(self, peer: Peer, address: ProcAddress) -> None:
        url = self._choose_url(address)
        self._peers.locate(peer, address)
        hello = pack(Envelope(address.uid, Hello(self.address, PROTOCOL_VERSION)))
        peer.up(address, lambda: self._transport.connect(url), hello)

    def _choose_url(self, address: ProcAddress) -> str:
        local = [url for url in address.urls if url.startswith("ipc://")]
        remote = [url for url in address.urls if not url.startswith("ipc://")]
        if local and (not remote or address.machine == self.address.machine):
            return local[0]
        return remote[0]

    def peer_up(self, address: ProcAddress) -> None:
        """A process listens at ``address``."""
        peer, _ = self._peers.find(address)
        if not peer.is_up:
            self._open(peer, address)

    def expect_end(self, uid: Uid) -> None:
        """A host was asked to end: that it is lost then, with its procs, is no failure."""
        self._ending.add(uid)

    def expects_end(self, uid: Uid) -> bool:
        return uid in self._ending

    def peer_down(self, down: ProcDown) -> None:
        """A process is gone: end every wait for it, and tell the agents."""
        self.peers_down([down])

    def peers_down(self, downs: Sequence[ProcDown], cause: str = "") -> None:
        """Processes are gone of one cause; a host takes its procs with it."""
        # Before any wait ends: whoever waited may attach to the host again at once.
        told_one, told_all = list(self.on_peer_down), list(self.on_deaths)
        marked = [(down, f) for down in downs if (f := self._mark_down(down)) is not None]
        lost = [down for down, _ in marked]
        with_them = [(d, f) for d in self._lost_with(lost) if (f := self._mark_down(d)) is not None]
        gone = with_them + marked
        self._watched.difference_update(down.uid for down in downs)
        for down, _ in gone:
            self._watched.discard(down.uid)
            self.lives.forget(down.uid)
            self.outgoing.down(down.uid)
            self.bulk_sender.forget(down.uid)
            self.loop.call_soon(functools.partial(self.bulk_receiver.forget, down.uid))
        for down, failure in gone:
            self.calls.down(down.uid, failure)
        if gone:
            for told in told_all:
                told([down for down, _ in gone], cause or lost[0].uid)
        for down, _ in gone:
            for tell in told_one:
                tell(down.uid, down)

    def _on_proc_again(self, envelope: Envelope) -> None:
        """What was sent to the old process ends with it; what was kept goes to the new one."""
        again = envelope.message
        assert isinstance(again, ProcAgain)
        uid = again.uid
        held_from = self._held_from.pop(uid, None)
        peer = self._peers.get(uid)
        if peer is not None and peer.failure is not None:
            return
        if peer is not None:
            peer.again()
        self.bulk_sender.forget(uid)
        self.loop.call_soon(functools.partial(self.bulk_receiver.forget, uid))
        if held_from is None:
            self.outgoing.down(uid)
        if held_from is None or not again.is_clean:
            failure = MeshFailure(
                again.name or uid, (), f"{again.reason}; this message may or may not have been "
                "handled before, later ones go to the new process", "proc", expected=True,
            )  # fmt: skip
            self.calls.down(uid, failure, held_from or self.calls.next_port())
        for tell in self.on_peer_again:
            tell(again)

    def _mark_down(self, down: ProcDown) -> MeshFailure | None:
        """The failure, if it is news."""
        peer, _ = self._peers.find(ProcAddress(down.uid))
        failure = MeshFailure(
            down.name or down.uid, (), down.reason, "proc", down.host, tuple(down.last_output),
            expected=down.expected, log_file=down.log_file,
        )  # fmt: skip
        if not peer.down(failure):
            return None
        self._introduced.pop(down.uid, None)
        self._peers.bury(down.uid)
        return failure

    def _lost_with(self, hosts: Sequence[ProcDown]) -> list[ProcDown]:
        """The procs of lost hosts that we know of, as peers or as members of a tree."""
        found = []
        for down in hosts:
            if not down.uid:
                continue  # What a broken peer says; to be on no host is not to be on that one.
            host = self._peers.get(down.uid)
            urls = host.address.urls if host is not None else ()
            name = urls[0] if urls else down.host or down.uid
            reason = f"its host {name} was lost: {down.reason}"
            expected = down.expected or down.uid in self._ending
            procs = self._peers.on_host(down.uid)
            found += [
                ProcDown(uid, reason, name, expected=expected)
                for uid in dict.fromkeys(procs + self.trees.procs_on(down.uid))
                if uid != down.uid
            ]
        return found

    def forget_peer(self, uid: Uid) -> None:
        """Close the connection to a process that has left in peace."""
        peer = self._peers.pop(uid)
        self._introduced.pop(uid, None)
        self._watched.discard(uid)
        self.lives.forget(uid)
        self.outgoing.down(uid)
        self.loop.call_soon(lambda: self.bulk_receiver.forget(uid))
        self.bulk_sender.part(uid)
        if peer is not None:
            peer.down(MeshFailure(uid, (), "left"))

    def _receive(self, frames: Frames) -> None:
        envelope = unpack(frames)
        if envelope.route not in ("", self.address.uid):
            raise WireError(f"it is for another process ({envelope.route[:20]!r})")
        if self._held_back:
            self.receive(envelope)
        else:
            self._try(envelope)

    def _try(self, envelope: Envelope) -> None:
        """Handle a message; one that cannot be is logged, and nobody is left to wait for it."""
        try:
            self.dispatch(envelope)
        except Exception as error:
            message = envelope.message
            name = type(message).__name__
            self._rare.exception((name, type(error)), "could not handle a message (%s)", name)
            port, sender = getattr(message, "port", 0), getattr(message, "sender", "")
            if port and not isinstance(message, Call | Reply | Answer):
                asker = message.client if isinstance(message, Attach) else sender
                self.answer(asker, port, error=f"it failed there: {type(error).__name__}: {error}")

    def receive(self, envelope: Envelope) -> None:
        """Handle a whole message in its sender's order. On the I/O loop."""
        if not (self._held_back and self.bulk_receiver.hold_back(envelope)):
            self._try(envelope)

    def dispatch(self, envelope: Envelope) -> None:
        handler = self._handlers.get(type(envelope.message))
        if handler is None:
            name = type(envelope.message).__name__
            self._rare.warning(name, "nobody here handles such a message (%s)", name)
            return
        handler(envelope)

    def _on_hello(self, envelope: Envelope) -> None:
        assert isinstance(envelope.message, Hello)
        proc = envelope.message.proc
        with self._lock:
            # One that we have given up stays given up, however late its Hello comes.
            known = self._peers.get(proc.uid)
            if known is None:
                # Met when we first send to it: we then also hear of its end, and hang up.
                self.introduce(proc)
                return
        if not known.is_up and known.failure is None:
            self._open(known, proc)
        if self.watches_callers and known.failure is None:
            self._watch(proc)

    def _on_introduce(self, envelope: Envelope) -> None:
        assert isinstance(envelope.message, Introduce)
        self.introduce(envelope.message.proc)

    def _on_proc_up(self, envelope: Envelope) -> None:
        assert isinstance(envelope.message, ProcUp)
        self.peer_up(envelope.message.proc)

    def _on_proc_down(self, envelope: Envelope) -> None:
        assert isinstance(envelope.message, ProcDown)
        self.peer_down(envelope.message)

    def _on_procs_down(self, envelope: Envelope) -> None:
        assert isinstance(envelope.message, ProcsDown)
        self.peers_down(envelope.message.downs, envelope.message.cause)

    def close(self) -> None:
        """Leave the network. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.lives.stop()
        with contextlib.suppress(Exception):
            self.loop.run_on_loop(self.lives.close, timeout=1.0)
        self.outgoing.close()
        with contextlib.suppress(Exception):
            self.loop.run_on_loop(self.bulk_receiver.close, timeout=1.0)
        with contextlib.suppress(Exception):
            self._transport.close()
        self.bulk_sender.close()
        self.loop.stop()


def _host_of(proc: ProcAddress) -> ProcAddress:
    return ProcAddress(proc.host_uid, proc.host_urls, proc.machine)
