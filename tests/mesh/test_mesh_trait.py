"""Mesh operations, against a model that keeps every rank with its coordinates in a dict."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.mesh import Extent, MeshTrait, Shape, Slice

Selector = int | slice


class Ranks(MeshTrait):
    """A mesh that is nothing but its shape."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    @property
    def _ndslice(self) -> Slice:
        return self.shape.ndslice

    @property
    def _labels(self) -> Sequence[str]:
        return self.shape.labels

    def _new_with_shape(self, shape: Shape) -> Ranks:
        assert set(shape.ranks()) <= set(self.shape.ranks())
        return Ranks(shape)


def mesh(**sizes: int) -> Ranks:
    return Ranks(Extent(list(sizes), list(sizes.values())).region.as_shape())


def model_of(m: Ranks) -> dict[tuple[int, ...], int]:
    return {tuple(m.shape.coordinates(rank).values()): rank for rank in m.shape.ranks()}


def model_slice(
    model: dict[tuple[int, ...], int], sizes: dict[str, int], selectors: dict[str, Selector]
) -> list[int]:
    """The ranks that direct indexing of every dimension leaves over, in row-major order."""
    allowed = []
    for label, size in sizes.items():
        selector = selectors.get(label, slice(None))
        positions = range(size)[selector]
        allowed.append([positions] if isinstance(positions, int) else list(positions))
    return [
        rank
        for coordinates, rank in sorted(model.items())
        if all(c in a for c, a in zip(coordinates, allowed, strict=True))
    ]


@st.composite
def selections(draw: st.DrawFn, m: Ranks) -> dict[str, Selector]:
    selectors: dict[str, Selector] = {}
    for label, size in m.sizes.items():
        kind = draw(st.sampled_from(["all", "one", "some"]))
        if kind == "one":
            selectors[label] = draw(st.integers(0, size - 1))
        elif kind == "some":
            start = draw(st.integers(0, size - 1))
            stop = draw(st.integers(start + 1, size + 2))
            selectors[label] = slice(start, stop, draw(st.integers(1, 3)))
    return selectors


meshes = st.lists(st.integers(1, 5), max_size=4).map(
    lambda sizes: mesh(**{f"d{dim}": size for dim, size in enumerate(sizes)})
)


@given(meshes, st.data())
def test_a_slice_of_a_slice_equals_direct_indexing(m: Ranks, data: st.DataObject) -> None:
    for _ in range(3):
        selectors = data.draw(selections(m))
        part = m.slice(**selectors)
        assert part.shape.ranks() == model_slice(model_of(m), m.sizes, selectors)
        assert list(part.sizes) == [d for d in m.sizes if not isinstance(selectors.get(d), int)]
        m = part


@given(meshes, st.data())
def test_the_ranks_of_a_slice_are_a_part_in_order(m: Ranks, data: st.DataObject) -> None:
    part = m.slice(**data.draw(selections(m))).shape.ranks()
    assert [rank for rank in m.shape.ranks() if rank in part] == part


@given(meshes, st.data())
def test_slicing_by_a_point_finds_that_rank(m: Ranks, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, len(m) - 1))
    assert m.slice(**m.shape.region.point_of_base_rank(rank)).shape.ranks() == [rank]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_split_then_flatten_is_identity(a: int, b: int, c: int) -> None:
    m = mesh(hosts=a * b * c)
    split = m.split(hosts=("a", "b", "c"), a=a, c=c)
    assert split.sizes == {"a": a, "b": b, "c": c}
    assert split.shape.ranks() == m.shape.ranks()
    assert split.flatten("hosts").shape == m.shape


def test_split_keeps_what_is_not_mentioned_and_sparse_strides() -> None:
    m = mesh(host=4, gpu=4).slice(gpu=slice(0, 4, 2))
    split = m.split(host=("dp", "pp"), pp=2)
    assert split.sizes == {"dp": 2, "pp": 2, "gpu": 2}
    assert split.shape.ranks() == m.shape.ranks()
    assert split.slice(dp=1, pp=0).shape.ranks() == [8, 10]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"host": "dp"}, "expected a sequence of dimensions, but got 'dp'"),
        ({"x": ("a", "b")}, "'x' is not an existing dim. Expected an integer size constraint"),
        ({"host": ("a", "b")}, "Cannot infer size of .* both b and a have unknown size"),
        ({"host": ("a", "b"), "a": 3}, "of size 4 is not evenly divided by .* sizes .3, '\\?'"),
        ({"host": ("a", "b"), "a": 2, "b": 3}, "is not evenly divided by .* sizes .2, 3"),
        ({"host": ("a", "b"), "a": 0}, "is not evenly divided"),
        ({"host": ("gpu",)}, "Duplicate dimension name 'gpu'"),
        ({"host": ("a", "b"), "a": 2, "z": 2}, "unused size constraints: .'z'"),
    ],
)
def test_what_cannot_be_split(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mesh(host=4, gpu=2).split(**arguments)


def test_flatten_needs_contiguous_ranks() -> None:
    m = mesh(hosts=3, gpus=4)
    assert m.slice(hosts=slice(1, 3)).flatten("all").shape.ranks() == list(range(4, 12))
    assert m.slice(hosts=slice(1, 2), gpus=slice(1, 3)).flatten("all").shape.ranks() == [5, 6]
    assert m.slice(hosts=1, gpus=2).flatten("all").shape == Shape(
        ["all"], Slice(offset=6, sizes=[1], strides=[1])
    )
    with pytest.raises(ValueError, match="cannot flatten sparse mesh"):
        m.slice(gpus=slice(0, 2)).flatten("all")


def test_rename() -> None:
    assert mesh(hosts=2, gpus=4).rename(hosts="dp").sizes == {"dp": 2, "gpus": 4}


def test_sizes() -> None:
    m = mesh(hosts=2, gpus=4)
    assert (m.size(), m.size("gpus"), m.size(["hosts", "gpus"]), m.size([])) == (8, 4, 8, 1)
    assert (m.sizes, m.extent, len(m)) == (
        {"hosts": 2, "gpus": 4},
        Extent(["hosts", "gpus"], [2, 4]),
        8,
    )
    with pytest.raises(KeyError, match="does not have dimension 'x'"):
        m.size("x")


def test_slicing_what_is_not_there() -> None:
    m = mesh(hosts=2)
    for index in (-1, 2):
        with pytest.raises(IndexError, match=r"^index out of range: hosts=-?\d, and hosts has 2 "):
            m.slice(hosts=index)
    with pytest.raises(TypeError, match=r"^Shape does not have dimension labeled 'x'; there is"):
        m.slice(x=0)
