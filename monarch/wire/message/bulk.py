"""Bulk that travels apart from its message.

Payload: the header of the message it belongs to; buffer: the payload of that message, where it
is not among the bulk. ``sizes`` are those of the pieces: the payload first, if it is one of
them, then the buffers.
"""

from __future__ import annotations

from monarch.wire.address import Uid
from monarch.wire.message.header import Message


class Parcel(Message, tag=12):
    """A message whose bulk lies in a segment of shared memory, handed over before.

    ``is_shared``: others look at the same region, so that nobody may write to it.
    """

    sender: Uid
    segment: int
    offset: int
    hold: int
    is_shared: bool
    has_payload: bool
    sizes: tuple[int, ...]


class Consignment(Message, tag=13):
    """A message whose bulk follows in chunks, as the receiver asks for them."""

    sender: Uid
    number: int
    has_payload: bool
    sizes: tuple[int, ...]


class Chunk(Message, tag=14):
    """The next bytes of a consignment, as buffers."""

    sender: Uid
    number: int


class Credit(Message, tag=15):
    """Send me so many more chunks of that consignment; 0: I will not take it."""

    sender: Uid
    number: int
    num_chunks: int


class Retire(Message, tag=16):
    """These segments of mine are not used any longer: unmap them."""

    sender: Uid
    segments: tuple[int, ...]


class Unmapped(Message, tag=17):
    """I do not have this segment of yours, so the parcel with this hold could not be opened.

    Whoever needs the segment again is to be handed it anew.
    """

    sender: Uid
    segment: int
    hold: int
