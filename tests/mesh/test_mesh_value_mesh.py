import pickle
from collections.abc import Sequence
from typing import overload

import pytest

from monarch.mesh import Extent, Point, Shape, Slice, ValueMesh

SHAPE = Extent(["hosts", "gpus"], [2, 3]).region.as_shape()


class Counted(Sequence[str]):
    """Values that are made when they are looked at, and remember which were."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.seen: list[int] = []

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        assert isinstance(i, int)
        self.seen.append(i)
        return f"value {i}"

    def __len__(self) -> int:
        return self.length


def test_iteration_yields_points_of_the_current_shape_counted_from_zero() -> None:
    part = ValueMesh(SHAPE, list("abcdef")).slice(hosts=1, gpus=slice(1, 3))
    extent = Extent(["gpus"], [2])
    assert list(part) == list(part.items()) == [(Point(0, extent), "e"), (Point(1, extent), "f")]
    assert (part.values(), len(part), part.extent) == (["e", "f"], 2, extent)


def test_item_wants_every_dimension_and_no_other() -> None:
    values = ValueMesh(SHAPE, list("abcdef"))
    assert values.item(gpus=2, hosts=1) == "f"
    assert values.slice(hosts=0, gpus=1).item() == "b"
    assert values.slice(gpus=slice(1, 3)).item(hosts=1, gpus=0) == "e"
    with pytest.raises(KeyError, match=r"missing dimensions: .'gpus'"):
        values.item(hosts=1)
    with pytest.raises(KeyError, match=r"extra dimensions: .'x'"):
        values.item(hosts=1, gpus=0, x=0)
    with pytest.raises(IndexError, match="index out of range"):
        values.item(hosts=1, gpus=3)


def test_get_counts_within_the_mesh() -> None:
    part = ValueMesh(SHAPE, list("abcdef")).slice(gpus=2)
    assert [part.get(0), part.get(1)] == ["c", "f"]
    for rank in (-1, 2):
        with pytest.raises(ValueError, match=f"index {rank} out of range .len=2."):
            part.get(rank)


def test_reshaping_keeps_the_order_of_values() -> None:
    values = ValueMesh(SHAPE, list("abcdef"))
    for reshaped in (
        values.flatten("rank"),
        values.rename(hosts="dp"),
        values.split(gpus=("a", "b"), a=1),
        values.flatten("rank").split(rank=("x", "y"), y=2),
    ):
        assert reshaped.values() == list("abcdef")
    assert values.flatten("rank").slice(rank=4).item() == "e"
    assert values.slice(hosts=1).flatten("rank").slice(rank=slice(0, 3, 2)).values() == ["d", "f"]


def test_a_shape_with_an_offset_counts_its_own_values() -> None:
    values = ValueMesh(Shape(["gpus"], Slice(offset=4, sizes=[2], strides=[2])), ["a", "b"])
    assert values.item(gpus=1) == "b"
    assert values.slice(gpus=1).item() == "b"


def test_lazy_values_are_only_asked_for_when_looked_at() -> None:
    lazy = Counted(6)
    part = ValueMesh(SHAPE, lazy).slice(hosts=1).slice(gpus=slice(1, 3))
    assert lazy.seen == []
    assert part.item(gpus=1) == "value 5"
    assert lazy.seen == [5]
    assert next(iter(part))[1] == "value 4"
    assert lazy.seen == [5, 4]


def test_pickling_carries_only_the_part_that_is_left() -> None:
    lazy = Counted(6)
    part = ValueMesh(SHAPE, lazy).slice(hosts=1)
    copy = pickle.loads(pickle.dumps(part))
    assert lazy.seen == [3, 4, 5]
    assert list(copy) == list(part)
    assert copy.slice(gpus=2).item() == "value 5"


def test_from_indexed() -> None:
    shape = Extent(["gpus"], [3]).region.as_shape()
    values = ValueMesh.from_indexed(shape, [(2, "c"), (0, "a"), (1, "x"), (1, "b")])
    assert values.values() == ["a", "b", "c"]
    with pytest.raises(ValueError, match=r"no value for ranks \[1, 2\]"):
        ValueMesh.from_indexed(shape, [(0, "a")])
    with pytest.raises(ValueError, match=r"ranks \[3\] are out of range"):
        ValueMesh.from_indexed(shape, [(3, "a")])


def test_values_must_fill_the_shape() -> None:
    with pytest.raises(ValueError, match="5 values do not fill a shape of 6 ranks"):
        ValueMesh(SHAPE, list("abcde"))


def test_a_mesh_without_dimensions_holds_one_value() -> None:
    values = ValueMesh(Shape.unity(), ["only"])
    assert (values.item(), len(values), repr(values)) == (
        "only",
        1,
        "ValueMesh({}):\n(\n  ({}, 'only'),\n)",
    )


def test_repr_shows_points_and_values() -> None:
    values = ValueMesh(Extent(["hosts", "gpus"], [2, 1]).region.as_shape(), [3, 4])
    assert repr(values) == (
        "ValueMesh({hosts: 2, gpus: 1}):\n"
        "(\n  ({'hosts': 0/2, 'gpus': 0/1}, 3),\n  ({'hosts': 1/2, 'gpus': 0/1}, 4),\n)"
    )
