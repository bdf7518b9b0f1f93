"""One process on the network: its address, its peers, its ports.

Everything that a process sends or receives goes through its node. What the messages mean is
decided by the agents that register for them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from monarch.config import settings
from monarch.core.call_table import CallTable, Sink
from monarch.core.liveness import Liveness
from monarch.errors import MeshFailure, WireError
from monarch.net.io_loop import IoLoop
from monarch.net.transport import Frames
from monarch.net.zmq_transport import ZmqTransport
from monarch.runtime.peer import Peer
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress, Uid, machine_id
from monarch.wire.codec import Bytes, Envelope, pack, unpack
from monarch.wire.keys import JobKeys
from monarch.wire.message import (
    PROTOCOL_VERSION,
    Answer,
    AnyMessage,
    Heartbeat,
    Hello,
    ProcDown,
    ProcUp,
    Reply,
    Watch,
)

__all__ = ["Node", "Outcome", "RawReply"]

_log = logging.getLogger("monarch.node")

Handler = Callable[[Envelope], None]


class RawReply:
    """An answer as it arrived: unpickled by whoever wants it, on their thread."""

    __slots__ = ("buffers", "failed", "payload", "refused")

    def __init__(self, payload: Bytes, buffers: Any, failed: bool, refused: bool) -> None:
        self.payload = payload
        self.buffers = buffers
        self.failed = failed
        self.refused = refused


class Outcome:
    """What became of a control request: a body, or an error text."""

    def __init__(self, body: dict[str, Any], error: str = "") -> None:
        self.body = body
        self.error = error


class Node:
    """The end of the network in this process."""

    def __init__(self, uid: Uid, keys: JobKeys | None = None) -> None:
        self.loop = IoLoop()
        self.keys = keys
        self.address = ProcAddress(uid, machine=machine_id())
        self.calls = CallTable()
        # Held while one message goes to many receivers, so that two casts of this process
        # reach all of them in the same order.
        self.casting = threading.RLock()
        self.liveness = Liveness(settings().heartbeat_seconds, settings().heartbeat_timeout_seconds)
        self.on_peer_down: list[Callable[[Uid, ProcDown], None]] = []
        self._peers: dict[Uid, Peer] = {}
        self._lock = threading.Lock()
        self._handlers: dict[type, Handler] = {}
        self._anywhere: set[type] = {Reply}
        self._transport = ZmqTransport(
            self.loop, self._receive, keys, max_message_bytes=settings().max_message_bytes
        )
        self._pidfds: dict[Uid, int] = {}
        self._closed = False
        self.handle(Hello, self._on_hello)
        self.handle(Reply, self._on_reply)
        self.handle(Answer, self._on_answer)
        self.handle(ProcUp, self._on_proc_up)
        self.handle(ProcDown, self._on_proc_down)
        self.handle(Heartbeat, self._on_heartbeat)

    @property
    def uid(self) -> Uid:
        return self.address.uid

    def start(self) -> None:
        self.loop.start()
        self.loop.call_later(settings().heartbeat_seconds, self._beat)

    def listen(self, url: str, advertise: str = "") -> str:
        """Receive at ``url``; others are told the host of ``advertise`` where it is given."""
        bound = self._transport.listen(url)
        if advertise.startswith("tcp://"):
            bound = f"{advertise.rpartition(':')[0]}:{bound.rpartition(':')[2]}"
        self.address = msgspec.structs.replace(self.address, urls=(*self.address.urls, bound))
        return bound

    def use_keys(self, keys: JobKeys) -> None:
        """Speak with these keys over TCP from here on."""
        self.keys = keys
        self._transport.use_keys(keys)

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
        if to.uid == self.address.uid:
            if type(message) in self._anywhere:
                self.dispatch(envelope)
            else:
                self.loop.call_soon(lambda: self.dispatch(envelope))
            return
        peer = self._peers.get(to.uid) or self._meet(to)
        peer.send(pack(envelope))

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
    ) -> Promise[Outcome]:
        """Send a control message, made from the number of the port that awaits its answer."""
        sink = _AnswerSink(to.uid)
        port = self.open_port(sink, [to.uid])
        if not sink.promise.is_set:
            self.send(to, make(port), payload, buffers)
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
        return peer.address if peer is not None else ProcAddress(uid)

    def expect(self, address: ProcAddress) -> Peer:
        """A process that will come up; what is sent to it meanwhile is kept.

        Whatever was known of an earlier process of that uid is forgotten.
        """
        with self._lock:
            peer = self._peers[address.uid] = Peer(address)
        return peer

    def _meet(self, address: ProcAddress) -> Peer:
        with self._lock:
            peer = self._peers.get(address.uid)
            if peer is not None:
                return peer
            peer = self._peers[address.uid] = Peer(address)
        if address.urls:
            self._open(peer, address)
        if address.host_uid not in ("", address.uid):
            # Its host agent tells us when it is up, and when it dies.
            host = ProcAddress(address.host_uid, address.host_urls, address.machine)
            self.send(host, Watch(address.uid, self.address))
        return peer

    def _open(self, peer: Peer, address: ProcAddress) -> None:
        url = self._choose_url(address)
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
        with self._lock:
            peer = self._peers.setdefault(address.uid, Peer(address))
        if not peer.is_up:
            self._open(peer, address)

    def peer_down(self, down: ProcDown) -> None:
        """A process is gone: end every wait for it, and tell the agents."""
        with self._lock:
            peer = self._peers.setdefault(down.uid, Peer(ProcAddress(down.uid)))
        failure = MeshFailure(down.uid, (), down.reason, "proc", down.host, tuple(down.last_output))
        if not peer.down(failure):
            return
        self.liveness.forget(down.uid)
        self.loop.call_soon(lambda: self._unwatch(down.uid))
        self.calls.down(down.uid, failure)
        for told in list(self.on_peer_down):
            told(down.uid, down)

    def forget_peer(self, uid: Uid) -> None:
        """Close the connection to a process that has left in peace."""
        with self._lock:
            peer = self._peers.pop(uid, None)
        self.liveness.forget(uid)
        self.loop.call_soon(lambda: self._unwatch(uid))
        if peer is not None:
            peer.down(MeshFailure(uid, (), "left"))

    def watch_life(self, peer: ProcAddress, pid: int, gone: Callable[[], None]) -> None:
        """Notice when a process ends.

        On this machine ``gone`` is called at once when it does; a process that is merely stopped
        (Ctrl-Z, a debugger) stays. On another one, heartbeats that stay out make it down.
        """
        is_here = peer.machine == self.address.machine
        if not (is_here and self._watch_pid(peer.uid, pid, gone)):
            self.liveness.expect(peer.uid, self.loop.time())

    def _watch_pid(self, uid: Uid, pid: int, gone: Callable[[], None]) -> bool:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self.loop.call_soon(gone)
            return True
        except OSError:
            return False

        def ended() -> None:
            self._unwatch(uid)
            gone()

        def watch() -> None:
            self._unwatch(uid)
            self._pidfds[uid] = fd
            self.loop.add_reader(fd, ended)

        self.loop.call_soon(watch)
        return True

    def _unwatch(self, uid: Uid) -> None:
        fd = self._pidfds.pop(uid, None)
        if fd is not None:
            self.loop.remove_reader(fd)
            os.close(fd)

    def _unwatch_all(self) -> None:
        for uid in list(self._pidfds):
            self._unwatch(uid)

    def _receive(self, frames: Frames) -> None:
        try:
            envelope = unpack(frames)
        except WireError as error:
            _log.warning("dropped what a peer sent: %s", error)
            return
        if envelope.route in ("", self.address.uid):
            self.dispatch(envelope)

    def dispatch(self, envelope: Envelope) -> None:
        handler = self._handlers.get(type(envelope.message))
        if handler is None:
            _log.warning("nobody here handles %s", type(envelope.message).__name__)
            return
        handler(envelope)

    def _on_hello(self, envelope: Envelope) -> None:
        assert isinstance(envelope.message, Hello)
        proc = envelope.message.proc
        with self._lock:
            known = self._peers.get(proc.uid)
            if known is None:
                # One that we have given up stays given up, however late its Hello comes.
                self._peers[proc.uid] = known = Peer(proc)
        if not known.is_up and known.failure is None:
            self._open(known, proc)

    def _on_reply(self, envelope: Envelope) -> None:
        reply = envelope.message
        assert isinstance(reply, Reply)
        raw = RawReply(envelope.payload, envelope.buffers, reply.failed, reply.refused)
        self.calls.receive(reply.port, reply.rank, raw)

    def _on_answer(self, envelope: Envelope) -> None:
        answer = envelope.message
        assert isinstance(answer, Answer)
        self.liveness.heard(answer.sender, self.loop.time())
        self.calls.receive(answer.port, 0, Outcome(answer.body, answer.error))

    def _on_proc_up(self, envelope: Envelope) -> None:
        assert isinstance(envelope.message, ProcUp)
        self.peer_up(envelope.message.proc)

    def _on_proc_down(self, envelope: Envelope) -> None:
        assert isinstance(envelope.message, ProcDown)
        self.peer_down(envelope.message)

    def _on_heartbeat(self, envelope: Envelope) -> None:
        assert isinstance(envelope.message, Heartbeat)
        sender = envelope.message.sender
        if self.liveness.is_expected(sender):
            self.liveness.heard(sender, self.loop.time())
        else:
            # It depends on hearing of us, though we know of it by other means.
            self.send(self.address_of(sender), Heartbeat(self.uid))

    def _beat(self) -> None:
        if self._closed:
            return
        # Set first: whatever goes wrong with one peer, the others still need their heartbeats.
        self.loop.call_later(settings().heartbeat_seconds, self._beat)
        now = self.loop.time()
        for uid in self.liveness.due(now):
            self.send(self.address_of(uid), Heartbeat(self.uid))
        for uid, seconds in self.liveness.lost(now):
            self.peer_down(ProcDown(uid, f"nothing was heard of it for {seconds:.1f} s"))

    def close(self) -> None:
        """Leave the network. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(Exception):
            self.loop.run_on_loop(self._unwatch_all, timeout=1.0)
        with contextlib.suppress(Exception):
            self._transport.close()
        self.loop.stop()


class _AnswerSink:
    """Waits for the one answer to a control message."""

    def __init__(self, target: Uid) -> None:
        self._target = target
        self.promise: Promise[Outcome] = Promise()

    def receive(self, rank: int, answer: Outcome) -> bool:
        self.promise.set(answer)
        return True

    def down(self, uid: Uid, failure: MeshFailure) -> bool:
        if uid != self._target:
            return False
        self.promise.set(Outcome({}, failure.reason))
        return True
