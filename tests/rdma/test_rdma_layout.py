"""Where the bytes of strided tensors lie, against numpy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.rdma.memory.layout import (
    Layout,
    RunReader,
    StoragePlace,
    batches,
    blocks,
    joined,
    layout_of,
    paired,
)

np = pytest.importorskip("numpy")


@st.composite
def views(draw: st.DrawFn) -> Any:
    """Views of an array of which each byte has a number, with steps, turned round or transposed."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    whole = np.arange(int(np.prod(shape)) * 2, dtype=np.int16).view(np.uint16)
    array = whole[: int(np.prod(shape))].reshape(shape)
    for axis in range(len(shape)):
        size = array.shape[axis]
        start = draw(st.integers(0, size - 1))
        step = draw(st.sampled_from([1, 1, 2, -1]))
        index = [slice(None)] * len(shape)
        index[axis] = slice(start, None, step) if step > 0 else slice(None, None, step)
        array = array[tuple(index)]
    return array.transpose(draw(st.permutations(range(len(shape)))))


def bytes_by_runs(array: Any, layout: Layout, start: int, stop: int) -> bytes:
    base = array
    while base.base is not None:
        base = base.base
    data = base.tobytes()
    first = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    runs = joined(layout.runs(start, stop))
    return b"".join(data[first + offset : first + offset + size] for offset, size in runs)


@given(views(), st.data())
def test_runs_are_the_bytes_in_the_order_of_the_elements(array: Any, data: st.DataObject) -> None:
    layout = layout_of(array.shape, array.strides, array.itemsize)
    assert layout.nbytes == array.nbytes
    start = data.draw(st.integers(0, array.nbytes))
    stop = data.draw(st.integers(start, array.nbytes))
    assert bytes_by_runs(array, layout, start, stop) == array.tobytes()[start:stop]


@given(views())
def test_the_span_holds_every_run_and_no_more(array: Any) -> None:
    layout = layout_of(array.shape, array.strides, array.itemsize)
    low, size = layout.span()
    runs = list(layout.runs())
    assert min(offset for offset, _ in runs) == low
    assert max(offset + length for offset, length in runs) == low + size


def test_what_lies_together_is_one_run() -> None:
    assert layout_of([4, 6], [48, 8], 8) == Layout(192)
    assert layout_of([4, 1, 6], [48, 7, 8], 8) == Layout(192)
    assert layout_of([4, 6], [96, 8], 8) == Layout(48, (4,), (96,))
    assert layout_of([2, 3], [120, 40], 8) == Layout(8, (6,), (40,))


RUNS = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 50)), max_size=30)


@given(RUNS, st.integers(1, 7), st.integers(1, 60))
def test_batches_keep_order_and_limits(
    runs: list[tuple[int, int]], most: int, most_bytes: int
) -> None:
    def spelled(some: list[tuple[int, int]]) -> list[int]:
        return [byte for offset, length in some for byte in range(offset, offset + length)]

    found = list(batches(runs, most, most_bytes))
    assert spelled([run for batch, _ in found for run in batch]) == spelled(runs)
    for batch, total in found:
        assert len(batch) <= most
        assert total == sum(length for _, length in batch) <= most_bytes


@pytest.mark.long
@given(RUNS, st.data())
def test_a_run_reader_hands_out_every_byte_once(
    runs: list[tuple[int, int]], data: st.DataObject
) -> None:
    reader, left, taken = RunReader(runs), sum(length for _, length in runs), []
    while left:
        size = data.draw(st.integers(1, left))
        taken += reader.take(size)
        left -= size
    assert list(joined(taken)) == list(joined(runs))
    with pytest.raises(ValueError, match="too small"):
        reader.take(1)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    num = draw(st.integers(0, 3))
    sizes = tuple(draw(st.integers(1, 4)) for _ in range(num))
    strides = tuple(draw(st.sampled_from([9, 16, 40, 100])) for _ in range(num))
    return Layout(draw(st.sampled_from([1, 2, 4, 8])), sizes, strides)


def bytes_at(layout: Layout, start: int, stop: int) -> list[int]:
    return [at + byte for at, size in layout.runs(start, stop) for byte in range(size)]


@given(st.data(), layouts())
def test_any_bytes_of_a_layout_are_a_few_layouts_in_the_same_order(
    data: st.DataObject, layout: Layout
) -> None:
    start = data.draw(st.integers(0, layout.nbytes))
    stop = data.draw(st.integers(start, layout.nbytes))
    found = list(blocks(layout, start, stop))
    assert [
        offset + at for offset, one in found for at in bytes_at(one, 0, one.nbytes)
    ] == bytes_at(layout, start, stop)
    assert len(found) <= 2 * len(layout.sizes) + 1


@given(st.lists(layouts(), min_size=1, max_size=3), st.lists(layouts(), max_size=3))
def test_places_are_paired_byte_by_byte(source: list[Layout], target: list[Layout]) -> None:
    sides = [
        [StoragePlace(number, 1000 * number, one) for number, one in enumerate(side)]
        for side in (source, target)
    ]
    num_bytes = sum(one.nbytes for one in target)
    if sum(one.nbytes for one in source) < num_bytes:
        with pytest.raises(ValueError, match="too small"):
            list(paired(*sides))
        return
    pairs = list(paired(*sides))
    assert all(one.layout.nbytes == other.layout.nbytes for one, other in pairs)
    for side, moved in zip(sides, zip(*pairs, strict=True), strict=False):
        expected = [
            (place.storage, place.address + at)
            for place in side
            for at in bytes_at(place.layout, 0, place.layout.nbytes)
        ]
        found = [
            (place.storage, place.address + at)
            for place in moved
            for at in bytes_at(place.layout, 0, place.layout.nbytes)
        ]
        assert found == expected[:num_bytes]
