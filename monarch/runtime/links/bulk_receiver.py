"""How the bulk of large messages arrives, and the order of messages around it."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from monarch.config import settings
from monarch.core.reassembly import Assembly, SenderQueues
from monarch.errors import WireError
from monarch.net.segment import NUM_HOLDS, PAGE_BYTES, Segment, view_region
from monarch.net.segment_door import SegmentDoor, door_path
from monarch.runtime.links.broken import broken
from monarch.runtime.links.network import Gone, Network
from monarch.wire import layout
from monarch.wire.address import Uid
from monarch.wire.codec import Bytes, Envelope, unpack
from monarch.wire.message import (
    BulkChunk,
    Call,
    Cast,
    Consignment,
    Credit,
    Grow,
    Message,
    Order,
    Parcel,
    PortMark,
    Replies,
    Reply,
    Retire,
    SpawnActor,
    StopActor,
    Sync,
    Unmapped,
)

_log = logging.getLogger("monarch.node")

_MAX_MISSED = 1_000
_WINDOW = 4
"""How many chunks of a consignment are on their way at a time."""


class _Inbound:
    """A message whose bulk is still arriving in chunks."""

    def __init__(self, note: Consignment, inner: Envelope[Message]) -> None:
        self.note = note
        self.size = layout.total_size(note.sizes)
        self.inner = inner
        self.pieces: list[memoryview] = []
        self.assembly: Assembly | None = None


class BulkReceiver:
    """Joins messages with their bulk. All methods run on the I/O loop."""

    def __init__(self, node: Network, room: Callable[[int], memoryview]) -> None:
        self._node = node
        #: Returns memory of that many bytes for a message.
        self._room = room
        #: What receives segments, for each Unix socket at which this process listens.
        self._doors: list[SegmentDoor] = []
        #: The segments that are mapped here, by sender and number.
        self._segments: dict[tuple[Uid, int], Segment] = {}
        #: Why segments could not be mapped, by sender and number.
        self._missed: dict[tuple[Uid, int], str] = {}
        #: The consignments that are not complete, by sender and number.
        self._inbound: dict[tuple[Uid, int], _Inbound] = {}
        #: Those of them whose bulk has not been requested yet.
        self._queued: deque[_Inbound] = deque()
        #: How many bytes were requested and have not all come.
        self._bytes_expected = 0
        #: The most bytes that may be expected at a time; negative for no limit.
        self._limit = settings().max_message_bytes
        #: Messages that wait for the bulk of an earlier message of their sender.
        self.order: SenderQueues[Envelope[Message]] = SenderQueues()
        node.on_gone.append(self._forget_gone)
        node.handle(Parcel, self.on_parcel)
        node.handle(Consignment, self.on_consignment)
        node.handle(BulkChunk, self.on_chunk)
        node.on(Retire, self.on_retire)

    def open_door(self, url: str) -> None:
        """Receive segments at the process's Unix socket ``url``, if the system supports that."""
        with contextlib.suppress(OSError):
            door = SegmentDoor(door_path(url))
            self._doors.append(door)
            self._node.loop.run_on_loop(
                lambda: self._node.loop.add_reader(door.fileno(), self._take_in)
            )

    def _take_in(self) -> None:
        for door in self._doors:
            for name, fd in door.take():
                sender, _, digits = name.partition(" ")
                key = sender, int(digits) if digits.isdecimal() else 0
                if fd is None:
                    self._missed[key] = "this process had no file descriptor left for it"
                    continue
                try:
                    self._segments.setdefault(key, Segment.of_peer(fd))
                except (OSError, ValueError) as error:
                    os.close(fd)
                    self._missed[key] = str(error)
                    _log.warning("could not map the memory that %s shares: %s", sender, error)
        if len(self._missed) > _MAX_MISSED:
            self._missed.clear()

    def on_parcel(self, envelope: Envelope[Parcel]) -> None:
        parcel = envelope.message
        key = parcel.sender, parcel.segment
        if key not in self._segments:
            self._take_in()
        segment = self._segments.get(key)
        if segment is None:
            why = self._missed.pop(key, "it has not been handed over")
            self._cannot_open(envelope, parcel, f"its memory cannot be mapped here: {why}")
            return
        try:
            if not 0 <= parcel.hold < NUM_HOLDS <= parcel.offset or parcel.offset % PAGE_BYTES:
                raise ValueError("it lies where no bulk can be")
            size = layout.total_size(parcel.sizes)
            view = view_region(segment, parcel.offset, size, parcel.hold, private=parcel.is_shared)
        except (ValueError, OSError) as error:
            self._cannot_open(envelope, parcel, f"its memory cannot be mapped here: {error}")
            return
        inner = self._inner(envelope, parcel.has_payload, layout.split(view, parcel.sizes))
        if inner is not None:
            self._node.receive(inner)

    def _cannot_open(self, envelope: Envelope[Message], parcel: Parcel, why: str) -> None:
        """Tell the sender of a message that the segment with the message's bulk cannot be opened
        here.

        The sender then frees the region. It hands over the segment again with its next message. The
        receiver gets the message with a payload that raises ``why``.
        """
        unmapped = Unmapped(self._node.address.uid, parcel.segment, parcel.hold)
        self._node.send(self._node.address_of(parcel.sender), unmapped)
        inner = self._inner(envelope, parcel.has_payload, [])
        if inner is not None:
            self._node.receive(broken(inner, why))

    def _inner(
        self, envelope: Envelope[Message], has_payload: bool, pieces: Sequence[memoryview]
    ) -> Envelope[Message] | None:
        """Return the message that the bulk belongs to; ``None`` if it is no message."""
        small: Sequence[Bytes] = envelope.buffers[:1]
        if has_payload:
            small, pieces = pieces[:1], pieces[1:]
        try:
            inner = unpack([envelope.route.encode(), envelope.payload, *(small or [b""]), *pieces])
        except WireError as error:
            _log.warning("dropped what a peer sent: %s", error)
            return None
        if isinstance(inner.message, Parcel | Consignment):
            _log.warning("dropped what a peer sent: bulk within bulk")
            return None
        return inner

    def on_consignment(self, envelope: Envelope[Consignment]) -> None:
        note = envelope.message
        inner = self._inner(envelope, False, [])
        if inner is None:
            return
        inbound = _Inbound(note, inner)
        sender = _ordered_sender(inner.message)
        if sender is not None:
            self.order.begin(sender, (note.sender, note.number))
        self._inbound[note.sender, note.number] = inbound
        size = sum(note.sizes)
        if min(note.sizes, default=0) < 0 or size == 0 or 0 <= self._limit < size:
            self._refuse(inbound, f"it has {size} bytes, and max_message_bytes is {self._limit}")
            return
        self._queued.append(inbound)
        self._start_queued()

    def _start_queued(self) -> None:
        """Request the bulk of further messages, as far as there is room.

        There is one limit for all bulk that arrives at the same time.
        """
        while self._queued:
            first = self._queued[0]
            if self._bytes_expected and 0 <= self._limit < self._bytes_expected + first.size:
                return
            self._queued.popleft()
            try:
                memory = self._room(first.size)
            except MemoryError:
                self._refuse(first, f"there is no memory for its {first.size} bytes")
                continue
            self._bytes_expected += first.size
            first.pieces = layout.split(memory, first.note.sizes)
            first.assembly = Assembly(first.pieces)
            self._credit(first.note, _WINDOW)

    def _credit(self, note: Consignment, num_chunks: int) -> None:
        credit = Credit(self._node.address.uid, note.number, num_chunks)
        self._node.send(self._node.address_of(note.sender), credit)

    def on_chunk(self, envelope: Envelope[BulkChunk]) -> None:
        chunk = envelope.message
        inbound = self._inbound.get((chunk.sender, chunk.number))
        if inbound is None or inbound.assembly is None:
            return
        if not inbound.assembly.feed([memoryview(part) for part in envelope.buffers]):
            self._refuse(inbound, "its sender sent more than it had announced")
        elif inbound.assembly.is_complete:
            pieces = inbound.pieces
            inner = inbound.inner
            if inbound.note.has_payload:
                inner = msgspec.structs.replace(inner, payload=pieces[0], buffers=pieces[1:])
            else:
                inner = msgspec.structs.replace(inner, buffers=pieces)
            self._finish(inbound, inner)
        else:
            self._credit(inbound.note, 1)

    def _refuse(self, inbound: _Inbound, why: str) -> None:
        """Drop a message whose bulk cannot be received. The sender is told, and the receiver gets
        the message with a payload that raises ``why``.
        """
        self._credit(inbound.note, 0)
        self._finish(inbound, broken(inbound.inner, why))

    def _finish(self, inbound: _Inbound, inner: Envelope[Message]) -> None:
        key = inbound.note.sender, inbound.note.number
        self._forget(inbound)
        sender = _ordered_sender(inner.message)
        whole = [inner] if sender is None else self.order.complete(sender, key, inner)
        for envelope in whole:
            self._node.dispatch(envelope)
        self._start_queued()

    def _forget(self, inbound: _Inbound) -> None:
        self._inbound.pop((inbound.note.sender, inbound.note.number), None)
        if inbound.assembly is not None:
            self._bytes_expected -= inbound.size
        elif inbound in self._queued:
            self._queued.remove(inbound)

    def hold_back(self, envelope: Envelope[Message]) -> bool:
        """Keep a message back if the bulk of an earlier message of its sender is still missing.

        Returns whether it is kept back.
        """
        sender = _ordered_sender(envelope.message)
        if sender is None or not self.order.holds(sender):
            return False
        self.order.add(sender, envelope)
        return True

    def on_retire(self, retire: Retire) -> None:
        self._take_in()
        for number in retire.segments:
            # Views of it that are still in use keep its memory.
            self._segments.pop((retire.sender, number), None)

    def _forget_gone(self, uid: Uid, how: Gone) -> None:
        if how is not Gone.EXPECTED:
            self._node.loop.call_soon(lambda: self.forget(uid))

    def forget(self, uid: Uid) -> None:
        """Forget a process that is gone, and its incomplete messages."""
        self._take_in()
        for key in [key for key in self._segments if key[0] == uid]:
            del self._segments[key]
        free: list[Envelope[Message]] = []
        for inbound in [i for i in self._inbound.values() if i.note.sender == uid]:
            self._forget(inbound)
            sender = _ordered_sender(inbound.inner.message)
            if sender is not None and sender != uid:
                # The process that is gone only handed it on; later messages come another way.
                free += self.order.skip(sender, (uid, inbound.note.number))
        self.order.drop(uid)
        for envelope in free:
            self._node.dispatch(envelope)
        self._start_queued()

    def close(self) -> None:
        for door in self._doors:
            self._node.loop.remove_reader(door.fileno())
            door.close()
        self._doors.clear()
        self._segments.clear()
        self._inbound.clear()


_ORDERED = frozenset({Call, Cast, Order, PortMark, Replies, Reply, StopActor, Sync})


def _ordered_sender(message: Message) -> Uid | None:
    """Return the sender of a message whose order matters: it must not overtake earlier messages of
    that sender. None for other messages.
    """
    if type(message) in _ORDERED:
        sender: Uid = message.sender  # type: ignore[attr-defined]
        return sender
    if isinstance(message, Grow):
        return message.sender.uid
    return message.owner.uid if isinstance(message, SpawnActor) else None
