"""Messages survive a byte stream, however it is cut."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.net.framing import FramingError, Unframer, frame

frames = st.lists(
    st.one_of(st.binary(max_size=40), st.integers(30_000, 200_000).map(lambda n: b"x" * n)),
    max_size=20,
)


def read(stream: bytes, cuts: list[int], *, uses_room: bool) -> list[list[bytes]]:
    """Feed ``stream`` in pieces, into the room for large messages where that is asked for."""
    received: list[list[bytes]] = []
    unframer = Unframer(lambda parts: received.append([bytes(part) for part in parts]))
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        piece = memoryview(stream)[start:end]
        while piece:
            room = unframer.room if uses_room else None
            if room is None:
                unframer.feed(piece)
                break
            count = min(len(room), len(piece))
            room[:count] = piece[:count]
            unframer.filled(count)
            piece = piece[count:]
    return received


@given(st.lists(frames, max_size=5), st.lists(st.integers(0, 10**6), max_size=12), st.booleans())
def test_what_is_framed_comes_out_again(
    messages: list[list[bytes]], cuts: list[int], uses_room: bool
) -> None:
    stream = b"".join(bytes(part) for message in messages for part in frame(message))
    assert read(stream, cuts, uses_room=uses_room) == messages


def test_one_byte_at_a_time() -> None:
    messages = [[b"route", b"", b"payload"], [], [b"x" * 300]]
    stream = b"".join(bytes(part) for message in messages for part in frame(message))
    assert read(stream, list(range(len(stream))), uses_room=False) == messages


def test_a_small_message_is_one_buffer_and_a_large_one_is_not_copied() -> None:
    assert len(frame([b"a", b"b", b"c"])) == 1
    large = bytearray(1 << 20)
    parts = frame([b"a", large])
    assert isinstance(parts[-1], memoryview)
    assert parts[-1].obj is large


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 64,
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<IQ", 1, 1 << 63),
        struct.pack("<I2Q", 2, 1 << 63, 1 << 63),
    ],
)
def test_garbage_is_told_from_messages(data: bytes) -> None:
    with pytest.raises(FramingError):
        Unframer(lambda frames: None).feed(memoryview(data))


def test_a_message_over_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(FramingError, match="over the limit of 1,000"):
        Unframer(lambda frames: None, 1000).feed(memoryview(struct.pack("<IQ", 1, 1001)))
