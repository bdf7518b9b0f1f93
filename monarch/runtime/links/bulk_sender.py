"""Sends the bulk of large messages: through shared memory, or in chunks.

To a process of this machine it makes one copy into a region of shared memory, which the receiver,
or every receiver of a cast, maps. To other machines, or without free shared memory, it sends chunks
that the receiver asks for, with other messages between them; never one huge frame.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from monarch.config import settings
from monarch.core.reassembly import chunks_of
from monarch.errors import MessageTooLarge
from monarch.net.segment_door import door_path, hand_over
from monarch.net.transport import Frames
from monarch.runtime.links.network import Gone, Network
from monarch.runtime.links.peer import Peer
from monarch.runtime.links.shared_pool import Placed, SharedPool
from monarch.wire import layout
from monarch.wire.address import Uid
from monarch.wire.codec import Bytes, Envelope, pack, pack_header
from monarch.wire.message import BulkChunk, Consignment, Credit, Message, Parcel, Retire, Unmapped
from monarch.wire.payload import Borrowed

BULK_BYTES = 64 * 1024
"""From this size on, what a message carries travels apart from it."""

_CHUNK_BYTES = 2 * 2**20
_MAX_ROOM_BYTES = 32 * 2**20
_IDLE_SECONDS = 10.0


class _Cargo(NamedTuple):
    """The bulk of a message, in shared memory. ``is_shared``: several receivers may map it, so none
    of them may write to it."""

    placed: Placed
    sizes: tuple[int, ...]
    is_shared: bool


class _Outbound(NamedTuple):
    """A message to the process ``uid`` whose bulk is still being sent in chunks."""

    peer: Peer
    uid: Uid
    chunks: Iterator[list[memoryview]]


class BulkSender:
    """Sends messages that are too large for a frame. From any thread, unless a method says
    otherwise."""

    def __init__(self, node: Network) -> None:
        self._node = node
        self.pool = SharedPool(settings().shared_memory_bytes, clock=node.loop.time)
        #: The size of the largest message, in bytes; negative for no limit.
        self._limit = settings().max_message_bytes
        #: By segment: the processes that were given it.
        self._receivers: dict[int, set[Uid]] = {}
        #: By number: the consignments that are still being sent.
        self._outbound: dict[int, _Outbound] = {}
        self._numbers = itertools.count(1)
        #: Whether a look for unused memory is due.
        self._is_trimming = False
        #: How long memory must be unused before it is released.
        self.idle_seconds = _IDLE_SECONDS
        #: How many bytes were sent in chunks so far.
        self.num_chunk_bytes = 0
        node.on_gone.append(self._forget_gone)
        node.on(Credit, self.on_credit)
        node.on(Unmapped, self.on_unmapped)

    def send(self, peer: Peer, envelope: Envelope[Message]) -> None:
        """Send a message to ``peer``. The contents of its buffers are taken before this returns.

        Raises ``ValueError`` for a message beyond the limit.
        """
        uid, message = envelope.route, envelope.message
        data, buffers = envelope.payload, envelope.buffers
        size = len(data) + sum(map(len, buffers))
        if size < BULK_BYTES:
            if isinstance(buffers, Borrowed):
                envelope = Envelope(uid, message, data, buffers.copied())
            peer.send(pack(envelope))
            return
        self.check(size)
        has_payload = len(data) >= BULK_BYTES
        cargo = self._place(peer, data if has_payload else None, buffers)
        pieces: list[Bytes] = []
        if cargo is None:
            pieces = [*([data] if has_payload else []), *_kept(buffers)]
        small = Envelope(uid, message, b"" if has_payload else data)
        if peer.is_up:
            peer.send(self._frames(peer, small, has_payload, cargo, pieces))
        else:
            peer.send_when_up(lambda: self._frames(peer, small, has_payload, cargo, pieces))
        if peer.failure is not None:
            # It may have got regions after those of a dead process were freed.
            self.forget(uid)

    def check(self, size: int) -> None:
        """Raise ``MessageTooLarge`` if a message of so many bytes is beyond the limit."""
        why = self.why_not(size)
        if why:
            raise MessageTooLarge(why)

    def why_not(self, size: int) -> str:
        """Return why a message of so many bytes cannot be sent; "" if it can."""
        if size < BULK_BYTES or not 0 <= self._limit < size:
            return ""
        return (
            f"a message of {size} bytes is beyond the limit of {self._limit}: send it in "
            "parts, or raise the setting max_message_bytes (MONARCH_MAX_MESSAGE_BYTES) on "
            "both sides"
        )

    def take(self, buffers: Sequence[Bytes]) -> Sequence[Bytes]:
        """Return buffers with the same contents that may be given to a receiver in this process.

        Borrowed buffers are copied, because the sender may still change them; only ``bytes`` in a
        large message are not.
        """
        if not isinstance(buffers, Borrowed):
            return buffers
        if sum(map(len, buffers)) < BULK_BYTES:
            return [bytearray(view) for view in buffers]
        sizes = [len(view) for view in buffers]
        copies = layout.split(self.room(layout.total_size(sizes)), sizes)
        for index, view in enumerate(buffers):
            if type(view.obj) is bytes:
                copies[index] = view  # It cannot change, so there is no need for a copy.
            else:
                layout.copy(view, copies[index])
        return copies

    def room(self, size: int) -> memoryview:
        """Return ``size`` bytes of memory that only this process uses.

        It is reused memory if there is any of that size.
        """
        if size > _MAX_ROOM_BYTES:
            # The kernel makes its pages as they are written to, which takes the I/O loop no time.
            return memoryview(mmap.mmap(-1, size))
        placed = self._pooled(size)
        view = None if placed is None else placed.view()
        return memoryview(bytearray(size)) if view is None else view[:size]

    def _place(self, peer: Peer, data: Bytes | None, buffers: Sequence[Bytes]) -> _Cargo | None:
        """Place the bulk in shared memory; return ``None`` if that is impossible."""
        if peer.address.machine != self._node.address.machine:
            return None
        borrowed = buffers if isinstance(buffers, Borrowed) else None
        earlier = None if borrowed is None else borrowed.taken
        if isinstance(earlier, _Cargo) and earlier.is_shared:
            return earlier
        views = [memoryview(piece) for piece in ([] if data is None else [data])]
        views += [memoryview(piece) for piece in buffers]
        sizes = [len(view) for view in views]
        placed = self._pooled(layout.total_size(sizes))
        if placed is None:
            return None
        layout.write(views, placed.memory)
        # If it was sent before, to a receiver that may write to it, this copy is for all others.
        is_shared = earlier is not None or bool(borrowed and borrowed.is_shared)
        cargo = _Cargo(placed, tuple(sizes), is_shared)
        if borrowed is not None:
            borrowed.taken = cargo
        return cargo

    def _pooled(self, size: int) -> Placed | None:
        placed = self.pool.place(size)
        if placed is not None and not self._is_trimming:
            self._is_trimming = True
            self._node.loop.call_later(self.idle_seconds, self._trim)
        return placed

    def _frames(
        self,
        peer: Peer,
        small: Envelope[Message],
        has_payload: bool,
        cargo: _Cargo | None,
        pieces: Sequence[Bytes],
    ) -> Frames:
        """Return the frames of a message without its bulk. They say in which region the bulk is, or
        that it will be sent in chunks.
        """
        ours = self._node.address.uid
        header = pack_header(small.message)
        if cargo is not None:
            placed = cargo.placed
            has_segment = self._hand_over(peer, small.route, placed)
            hold = placed.hold(small.route) if has_segment else None
            if hold is not None:
                parcel = Parcel(
                    sender=ours,
                    segment=placed.number,
                    offset=placed.offset,
                    hold=hold,
                    is_shared=cargo.is_shared,
                    has_payload=has_payload,
                    sizes=cargo.sizes,
                )
                return pack(Envelope(small.route, parcel, header, (small.payload,)))
            pieces = [bytes(piece) for piece in layout.split(placed.memory, cargo.sizes)]
        number = next(self._numbers)
        views = [memoryview(piece) for piece in pieces]
        self._outbound[number] = _Outbound(peer, small.route, chunks_of(views, _CHUNK_BYTES))
        sizes = tuple(map(len, views))
        consignment = Consignment(ours, number, has_payload, sizes)
        return pack(Envelope(small.route, consignment, header, (small.payload,)))

    def _hand_over(self, peer: Peer, uid: Uid, placed: Placed) -> bool:
        """Make sure that the process ``uid`` has the segment of ``placed``. Return false if the
        segment cannot be handed over to it.
        """
        receivers = self._receivers.setdefault(placed.number, set())
        if uid in receivers:
            return True
        urls = [url for url in peer.address.urls if url.startswith("ipc://")]
        name = f"{self._node.address.uid} {placed.number}"
        try:
            hand_over(door_path(urls[0]), name, placed.segment.fd)
        except (OSError, IndexError):
            return False
        receivers.add(uid)
        return True

    def on_credit(self, credit: Credit) -> None:
        """Send as many chunks of a message's bulk as the receiver grants; 0 drops the message.

        On the loop.
        """
        outbound = self._outbound.get(credit.number)
        if outbound is None or outbound.uid != credit.sender:
            return
        chunk = BulkChunk(self._node.address.uid, credit.number)
        for _ in range(credit.num_chunks):
            parts = next(outbound.chunks, None)
            if parts is None:
                break
            self.num_chunk_bytes += sum(map(len, parts))
            outbound.peer.send(pack(Envelope(outbound.uid, chunk, b"", parts)))
        else:
            if credit.num_chunks:
                return
        self._outbound.pop(credit.number, None)

    def on_unmapped(self, unmapped: Unmapped) -> None:
        """Note that a segment did not arrive at a process. It is handed over again with the next
        message. On the loop.
        """
        self._receivers.get(unmapped.segment, set()).discard(unmapped.sender)
        self.pool.let_go(unmapped.segment, unmapped.hold, unmapped.sender)

    def _forget_gone(self, uid: Uid, how: Gone) -> None:
        if how is Gone.LEFT:
            self._node.loop.call_soon(lambda: self._drop(uid))  # It keeps its regions.
        elif how is not Gone.EXPECTED:
            self.forget(uid)

    def forget(self, uid: Uid) -> None:
        """Forget a process that is gone: free the regions that it held, and drop its bulk."""
        self.pool.forget(uid)
        self._node.loop.call_soon(lambda: self._drop(uid))

    def _drop(self, uid: Uid) -> None:
        for number in [n for n, out in dict(self._outbound).items() if out.uid == uid]:
            self._outbound.pop(number, None)
        for receivers in list(self._receivers.values()):
            receivers.discard(uid)

    def _trim(self) -> None:
        """Release memory that has not been needed for a while."""
        loop = self._node.loop
        for number in self.pool.trim(loop.time(), self.idle_seconds):
            for uid in self._receivers.pop(number, ()):
                to = self._node.address_of(uid)
                self._node.send(to, Retire(self._node.address.uid, (number,)))
        self._is_trimming = len(self.pool) > 0
        if self._is_trimming:
            loop.call_later(self.idle_seconds, self._trim)

    def close(self) -> None:
        """Release everything. Receivers keep the memory that was sent to them."""
        self.pool.close()
        self._outbound.clear()


def _kept(buffers: Sequence[Bytes]) -> Sequence[Bytes]:
    return buffers.copied() if isinstance(buffers, Borrowed) else buffers
