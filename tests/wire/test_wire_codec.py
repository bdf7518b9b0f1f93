from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch import errors
from monarch.errors import WireError
from monarch.wire import message
from monarch.wire.codec import Envelope, pack, unpack
from monarch.wire.message import PROTOCOL_VERSION, Heartbeat, Message, kinds

MESSAGES = kinds()

_PLAIN = st.none() | st.booleans() | st.integers(-(2**31), 2**31) | st.text(max_size=8)
_ANYTHING = st.recursive(
    _PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)


_FAILURE = functools.partial(
    st.builds,
    errors.MeshFailure,
    crashed_ranks=st.lists(st.integers(0, 2**31), max_size=3).map(tuple),
    last_output=st.lists(st.text(max_size=8), max_size=2).map(tuple),
    members=st.lists(st.text(max_size=8), max_size=2).map(tuple),
    lost_actors=st.just(()),
)
_FAILURES = _FAILURE(cause=st.none() | _FAILURE(cause=st.none()))


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type that may stand in a header."""
    info = msgspec.inspect
    match kind:
        case info.StrType():
            return st.text(max_size=20)
        case info.BytesType():
            return st.binary(max_size=20)
        case info.TupleType():
            return st.tuples(*[values(one) for one in kind.item_types])
        case info.IntType():
            return st.integers(-(2**63), 2**64 - 1)
        case info.FloatType():
            return st.floats(allow_nan=False)
        case info.BoolType():
            return st.booleans()
        case info.NoneType():
            return st.none()
        case info.EnumType():
            return st.sampled_from(kind.cls)
        case info.AnyType():
            return _ANYTHING
        case info.UnionType():
            return st.one_of([values(one) for one in kind.types])
        case info.VarTupleType():
            return st.lists(values(kind.item_type), max_size=4).map(tuple)
        case info.DictType():
            return st.dictionaries(values(kind.key_type), values(kind.value_type), max_size=4)
        case info.StructType(cls=errors.MeshFailure):
            return _FAILURES
        case info.StructType():
            return structs(kind.cls)
    raise AssertionError(f"no strategy for {kind}: teach this test the new kind of field")


def structs(cls: type) -> st.SearchStrategy[Any]:
    info = msgspec.inspect.type_info(cls)
    assert isinstance(info, msgspec.inspect.StructType)
    fields = {field.name: values(field.type) for field in info.fields}
    return st.builds(cls, **fields)


envelopes = st.builds(
    Envelope[Message],
    route=st.text(max_size=12),
    message=st.one_of([structs(cls) for cls in MESSAGES]),
    payload=st.binary(max_size=100),
    buffers=st.lists(st.binary(max_size=50), max_size=3),
)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_every_message_comes_back_as_it_was(cls: type[Message], data: st.DataObject) -> None:
    message = data.draw(structs(cls))
    assert unpack(pack(Envelope("to", message))).message == message


@given(envelope=envelopes)
def test_an_envelope_comes_back_with_all_that_travels_beside_it(
    envelope: Envelope[Message],
) -> None:
    back = unpack(pack(envelope))
    assert back == msgspec.structs.replace(envelope, buffers=back.buffers)
    assert list(back.buffers) == list(envelope.buffers)


def test_buffers_are_passed_on_and_not_copied() -> None:
    buffer = memoryview(bytearray(b"x" * 1000))
    frames = pack(Envelope("to", Heartbeat("me"), b"", [buffer]))
    assert frames[3] is buffer
    assert unpack(frames).buffers[0] is buffer


def test_all_tags_differ() -> None:
    tags = [cls.__struct_config__.tag for cls in MESSAGES]
    assert len(set(tags)) == len(tags)
    assert {cls.__name__ for cls in MESSAGES} <= set(dir(message))


@given(frames=st.lists(st.binary(max_size=40), max_size=5))
def test_random_frames_are_refused_with_wire_error(frames: list[bytes]) -> None:
    try:
        unpack(frames)
    except WireError:
        pass


@given(header=st.binary(max_size=60), route=st.binary(max_size=12))
def test_a_random_header_of_our_version_is_refused(header: bytes, route: bytes) -> None:
    try:
        unpack([route, bytes([PROTOCOL_VERSION]) + header, b""])
    except WireError:
        pass


@given(envelope=envelopes, data=st.data())
def test_a_truncated_header_is_refused(envelope: Envelope[Message], data: st.DataObject) -> None:
    frames = pack(envelope)
    cut = data.draw(st.integers(0, len(frames[1]) - 1))
    with pytest.raises(WireError):
        unpack([frames[0], frames[1][:cut], *frames[2:]])


@given(envelope=envelopes, data=st.data())
def test_a_damaged_header_is_refused_or_read_but_nothing_else(
    envelope: Envelope[Message], data: st.DataObject
) -> None:
    frames = pack(envelope)
    header = bytearray(frames[1])
    header[data.draw(st.integers(0, len(header) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        unpack([frames[0], bytes(header), *frames[2:]])
    except WireError:
        pass


def test_a_deeply_nested_header_is_refused() -> None:
    with pytest.raises(WireError):
        unpack([b"to", bytes([PROTOCOL_VERSION]) + b"\x91" * 100_000, b""])
    answer = b"\x95\x1d\x01\xa1s" + b"\x81\xa1k" * 100_000
    with pytest.raises(WireError):
        unpack([b"to", bytes([PROTOCOL_VERSION]) + answer, b""])


@pytest.mark.parametrize("version", [0, PROTOCOL_VERSION + 1, 255])
def test_another_version_is_named_and_tells_what_to_do(version: int) -> None:
    frames = pack(Envelope("to", Heartbeat("me")))
    with pytest.raises(WireError, match=f"version {version}, .*same release"):
        unpack([frames[0], bytes([version]) + bytes(frames[1][1:]), b""])


@pytest.mark.parametrize("frames", [[], [b"a"], [b"a", b"b"], [b"a", b"", b""]])
def test_too_few_frames_and_empty_headers_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(WireError):
        unpack(frames)


def test_a_route_that_is_no_text_is_refused() -> None:
    frames = pack(Envelope("to", Heartbeat("me")))
    with pytest.raises(WireError):
        unpack([b"\xff\xfe", *frames[1:]])
