"""How messages travel: along trees of host agents, and in bulk.

Trees: see ``core.fanout``. Bulk goes through shared memory, or in chunks (credit-based flow
control).
"""

from __future__ import annotations

import msgspec

from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message.header import Message


class Grow(Message, tag=61, kw_only=True):
    """To a host agent: the part of a tree that it needs to forward the casts of ``sender``.

    ``hosts`` are a range of the tree's hosts, and ``start`` is the position of its first host. Sent
    before the first cast, and again when a host of the tree has died.
    """

    mesh: Uid
    sender: ProcAddress
    start: int
    hosts: tuple[ProcAddress, ...]
    per_host: int
    degree: int
    dead: tuple[int, ...] = ()


class Cast(Message, tag=62, kw_only=True):
    """One message for members of a proc mesh, on a range of its hosts."""

    mesh: Uid
    sender: Uid
    #: Larger than the numbers of the sender's earlier casts along this tree.
    number: int
    #: The range of hosts: the first, and the one after the last.
    start: int
    stop: int
    #: The hosts that are known to be dead.
    dead: tuple[int, ...]
    #: The receivers, as ``Members.to_wire`` returns them.
    members: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]
    #: The header of the message.
    inner: bytes
    #: The process through which the answers to ``port`` are gathered.
    parent: ProcAddress | None = None
    port: int = 0


class Wither(Message, tag=65):
    """All procs of a mesh are gone: the tree that ``sender`` announced for it may be forgotten."""

    mesh: Uid
    sender: Uid
    dead: tuple[int, ...]


class FoldedReply(msgspec.Struct, array_like=True, frozen=True):
    """One answer among many; its payload and buffers follow those of the previous answer."""

    rank: int
    sender: Uid
    failed: bool
    refused: bool
    num_buffers: int
    generation: int = 0


class Replies(Message, tag=63):
    """Answers of several ranks, gathered on the way by host agent ``sender``."""

    port: int
    sender: Uid
    items: tuple[FoldedReply, ...]


class Parcel(Message, tag=12, kw_only=True):
    """A message whose bulk is in a segment of shared memory that was handed over before.

    ``is_shared``: other processes read the same region, so the receiver must not write to it.
    """

    sender: Uid
    segment: int
    offset: int
    hold: int
    is_shared: bool
    has_payload: bool
    sizes: tuple[int, ...]


class Consignment(Message, tag=13):
    """A message whose bulk follows in chunks, each when the receiver asks for it."""

    sender: Uid
    number: int
    has_payload: bool
    sizes: tuple[int, ...]


class BulkChunk(Message, tag=14):
    """The next bytes of a consignment, as buffers."""

    sender: Uid
    number: int


class Credit(Message, tag=15):
    """Send ``num_chunks`` more chunks of consignment ``number``.

    0 means that the receiver will not take the consignment.
    """

    sender: Uid
    number: int
    num_chunks: int


class Retire(Message, tag=16):
    """These segments of mine are not used any longer: unmap them."""

    sender: Uid
    segments: tuple[int, ...]


class Unmapped(Message, tag=17):
    """I do not have this segment of yours, so the parcel with this hold could not be opened.

    The segment must be handed over again before another parcel can use it.
    """

    sender: Uid
    segment: int
    hold: int
