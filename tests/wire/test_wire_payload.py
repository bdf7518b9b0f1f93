from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.wire import payload
from monarch.wire.large_bytes import as_bytes

_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=10)
    | st.binary(max_size=10)
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


def taken(data: payload.Payload) -> payload.Payload:
    """A payload as it travels: its buffers are the sender's no longer."""
    return payload.Payload(data.data, [bytearray(buffer) for buffer in data.buffers])


def round_trip(value: Any) -> Any:
    return payload.load(*taken(payload.dump(value)))


@given(value=_VALUES)
def test_plain_values_come_back(value: Any) -> None:
    back = round_trip(value)
    assert back == value
    assert type(back) is type(value)


@given(args=st.tuples(_LEAVES, _LEAVES), kwargs=st.dictionaries(st.text(max_size=5), _LEAVES))
def test_arguments_of_a_call_come_back(args: Any, kwargs: Any) -> None:
    assert round_trip((args, kwargs)) == (args, kwargs)


@pytest.mark.parametrize("dtype", ["float32", "int8", "complex128", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (200, 300)])
def test_arrays_come_back_equal_and_writable(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype)
    back = round_trip({"array": array})["array"]
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype
    assert back.flags.writeable
    back[...] = 0


def test_arrays_travel_beside_the_pickle() -> None:
    array = np.arange(100_000)
    data = payload.dump([array, array[::2], array])
    assert len(data.data) < array.nbytes // 2 + 2000
    assert sum(map(len, data.buffers)) >= array.nbytes
    first, every_other, again = payload.load(*data)
    np.testing.assert_array_equal(every_other, array[::2])
    assert first is again


def test_an_array_in_fortran_order_keeps_its_order() -> None:
    array = np.asfortranarray(np.arange(12).reshape(3, 4))
    back = round_trip(array)
    np.testing.assert_array_equal(back, array)
    assert back.flags.f_contiguous


def test_buffers_that_arrived_read_only_become_writable() -> None:
    data = payload.dump(np.zeros(10_000))
    back = payload.load(data.data, [memoryview(bytes(buffer)) for buffer in data.buffers])
    back[0] = 1
    assert back.flags.writeable


def test_buffers_that_arrived_writable_are_used_as_they_are() -> None:
    data = payload.dump(np.zeros(10_000))
    received = [bytearray(buffer) for buffer in data.buffers]
    back = payload.load(data.data, received)
    back[0] = 1.0
    assert any(received[0])


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: [1, 2], lambda value: value.append(3)),
        (lambda: {"a": 1}, lambda value: value.update(a=2)),
        (lambda: np.zeros(50_000), lambda value: value.fill(1)),
        (lambda: bytearray(100_000), lambda value: value.extend(b"more")),
    ],
    ids=["list", "dict", "array", "bytearray"],
)
def test_a_later_change_is_not_seen(make: Callable[[], Any], change: Callable[[Any], None]) -> None:
    value = make()
    data = taken(payload.dump(value))
    change(value)
    np.testing.assert_array_equal(np.asarray(payload.load(*data)), np.asarray(make()))


LARGE = 70_000


@pytest.mark.parametrize(
    "value",
    [
        b"a" * LARGE,
        bytearray(b"b" * LARGE),
        [b"c" * LARGE, 1, {"k": bytearray(b"d" * LARGE)}],
        ((b"e" * LARGE,), {"x": [(b"f" * LARGE, "text")]}),
        {"deep": [[[[b"g" * LARGE]]]]},
        "h" * LARGE,
        list(range(LARGE)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_large_values_come_back(value: Any) -> None:
    back = round_trip(value)
    assert back == value
    assert type(back) is type(value)


def test_large_bytes_travel_beside_the_pickle() -> None:
    value = ((b"a" * LARGE, bytearray(b"b" * LARGE)), {"c": [memoryview(b"d" * LARGE)]})
    data = payload.dump(value)
    assert len(data.data) < 1000
    assert sorted(map(len, data.buffers)) == [LARGE] * 3
    (one, two), more = payload.load(*taken(data))
    assert (one, two, more["c"]) == (b"a" * LARGE, b"b" * LARGE, [b"d" * LARGE])


def test_bytes_that_occur_twice_travel_once_and_are_one_object() -> None:
    value = b"a" * LARGE
    data = payload.dump([value, {"again": value}])
    assert len(data.buffers) == 1
    first, second = payload.load(*taken(data))
    assert first is second["again"]


def test_bytes_and_arrays_in_one_message_keep_apart() -> None:
    value = [np.arange(LARGE), b"a" * LARGE, np.ones(LARGE), b"b" * LARGE]
    back = round_trip(value)
    np.testing.assert_array_equal(back[0], value[0])
    np.testing.assert_array_equal(back[2], value[2])
    assert (back[1], back[3]) == (value[1], value[3])


def test_a_memoryview_arrives_as_bytes() -> None:
    assert round_trip(memoryview(b"a" * LARGE)) == b"a" * LARGE
    assert round_trip(memoryview(b"ab" * LARGE)[::2]) == b"a" * LARGE


def test_the_senders_memory_is_let_go_with_the_payload() -> None:
    value = bytearray(LARGE)
    data = payload.dump([value])
    with pytest.raises(BufferError):
        value.clear()
    del data
    value.clear()


def test_copies_are_made_once_and_of_what_can_change_only() -> None:
    fixed, array = b"a" * LARGE, np.ones(LARGE)
    borrowed = payload.dump([fixed, array]).buffers
    assert isinstance(borrowed, payload.Borrowed)
    copies = borrowed.copied()
    array[:] = 2
    assert borrowed.copied() is copies
    assert any(copy is fixed for copy in copies)
    assert np.frombuffer(next(c for c in copies if c is not fixed))[0] == 1


@pytest.mark.parametrize("size", [0, 1, 9 * 2**20 + 5])
def test_bytes_of_a_view_are_equal_to_it(size: int) -> None:
    view = memoryview(bytearray(b"abcdefg" * (size // 7 + 1)))[:size]
    assert as_bytes(view) == bytes(view)
    assert hash(as_bytes(view)) == hash(bytes(view))


def test_bytes_of_all_of_a_bytes_object_are_that_object() -> None:
    value = b"a" * 100
    assert as_bytes(memoryview(value)) is value
    assert as_bytes(memoryview(value)[1:]) == value[1:]


def test_lambdas_and_local_classes_travel_by_value() -> None:
    factor = 3

    class Local:
        def times(self, x: int) -> int:
            return x * factor

    assert round_trip(lambda x: x + factor)(4) == 7
    assert round_trip(Local)().times(5) == 15


class Odd(int):
    """A subclass of a plain type must keep its class."""


@pytest.mark.parametrize("value", [Odd(3), [Odd(3)], {"k": Odd(3)}, (Odd(3),)])
def test_subclasses_of_plain_types_keep_their_class(value: Any) -> None:
    back = round_trip(value)
    found = back if isinstance(back, Odd) else next(iter(getattr(back, "values", lambda: back)()))
    assert type(found) is Odd


class _Answer:
    """Nothing that is plain."""


def test_values_travel_while_another_thread_is_still_importing_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half = types.ModuleType("torch")
    half.__spec__ = importlib.util.spec_from_loader("torch", None)
    monkeypatch.setattr(half.__spec__, "_initializing", True, raising=False)
    monkeypatch.setitem(sys.modules, "torch", half)
    assert type(round_trip(_Answer())) is _Answer
