import pickle
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.mesh import DimensionNotFound, Extent, Point, Region, Shape, Slice

HOSTS_GPUS = Extent(["hosts", "gpus"], [2, 4])


@st.composite
def points(draw: st.DrawFn) -> Point:
    sizes = draw(st.lists(st.integers(1, 5), max_size=4))
    extent = Extent([f"d{dim}" for dim in range(len(sizes))], sizes)
    return Point(draw(st.integers(0, extent.nelements - 1)), extent)


@given(points())
def test_rank_and_coordinates_of_a_point_round_trip(point: Point) -> None:
    rank = 0
    for label, size in point.extent.items():
        assert 0 <= point[label] < size == point.size(label)
        rank = rank * size + point[label]
    assert rank == point.rank
    assert point.extent.region.point_of_base_rank(point.rank) == point
    assert pickle.loads(pickle.dumps(point)) == point


def test_extent_is_a_mapping_of_sizes() -> None:
    assert isinstance(HOSTS_GPUS, Mapping)
    assert dict(HOSTS_GPUS) == {"hosts": 2, "gpus": 4}
    assert (HOSTS_GPUS.labels, HOSTS_GPUS.sizes) == (["hosts", "gpus"], [2, 4])
    assert (len(HOSTS_GPUS), HOSTS_GPUS.nelements) == (2, 8)
    assert list(HOSTS_GPUS.keys()) == ["hosts", "gpus"]
    assert Extent([], []).nelements == 1


def test_extent_repr_quotes_only_what_is_no_identifier() -> None:
    assert repr(HOSTS_GPUS) == str(HOSTS_GPUS) == "{hosts: 2, gpus: 4}"
    assert repr(Extent(["my dim", "1st"], [1, 2])) == '{"my dim": 1, "1st": 2}'
    assert repr(Extent([], [])) == "{}"


def test_point_is_a_mapping_of_coordinates() -> None:
    point = Point(7, HOSTS_GPUS)
    assert isinstance(point, Mapping)
    assert dict(**point) == {"hosts": 1, "gpus": 3}
    assert (point["gpus"], point.size("gpus"), len(point), list(point)) == (
        3,
        4,
        2,
        ["hosts", "gpus"],
    )
    assert repr(Point(3, HOSTS_GPUS)) == str(Point(3, HOSTS_GPUS)) == "{'hosts': 0/2, 'gpus': 3/4}"
    assert repr(Point(0, Extent([], []))) == "{}"


def test_points_and_extents_compare_and_hash_by_value() -> None:
    assert Point(1, HOSTS_GPUS) == Point(1, Extent(["hosts", "gpus"], [2, 4]))
    assert Point(1, HOSTS_GPUS) != Point(2, HOSTS_GPUS)
    assert Point(1, HOSTS_GPUS) != {"hosts": 0, "gpus": 1}
    assert Extent(["a"], [2]) != Extent(["b"], [2])
    assert len({Point(1, HOSTS_GPUS), Point(1, HOSTS_GPUS), Point(2, HOSTS_GPUS)}) == 2
    assert len({HOSTS_GPUS, Extent(["hosts", "gpus"], [2, 4])}) == 1


def test_points_and_extents_are_read_only() -> None:
    with pytest.raises(AttributeError):
        Point(1, HOSTS_GPUS).rank = 2  # type: ignore[misc]
    HOSTS_GPUS.labels.append("more")
    assert HOSTS_GPUS.labels == ["hosts", "gpus"]


@pytest.mark.parametrize("mapping", [HOSTS_GPUS, Point(0, HOSTS_GPUS)])
def test_a_dimension_that_is_not_there(mapping: Mapping[str, int]) -> None:
    with pytest.raises(ValueError, match=r"^Dimension 'x' not found$"):
        mapping["x"]
    assert "x" not in mapping
    assert mapping.get("x", 7) == 7
    assert isinstance(pickle.loads(pickle.dumps(DimensionNotFound("gone"))), KeyError)


@pytest.mark.parametrize("rank", [-1, 8])
def test_a_point_lies_in_its_extent(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} is out of range for extent"):
        Point(rank, HOSTS_GPUS)


def test_labels_must_match_and_differ() -> None:
    with pytest.raises(ValueError, match="do not match 2 dimensions"):
        Extent(["hosts"], [1, 2])
    with pytest.raises(ValueError, match="duplicate dimension labels"):
        Shape(["a", "a"], Slice.new_row_major([2, 2]))
    with pytest.raises(ValueError, match="must not be negative"):
        Extent(["hosts"], [-1])


def test_shape_and_region_are_views_of_the_same_ranks() -> None:
    ndslice = Slice.new_row_major([2, 3])
    shape = Shape(["label0", "label1"], ndslice)
    assert (shape.ndslice, shape.labels, len(shape)) == (ndslice, ["label0", "label1"], 6)
    assert shape.ranks() == list(range(6))
    assert shape.coordinates(4) == {"label0": 1, "label1": 1}
    assert shape.extent == Extent(["label0", "label1"], [2, 3])
    assert shape.region == Region(["label0", "label1"], ndslice) == shape.extent.region
    assert shape.region.as_shape() == shape
    assert (shape.region.labels, shape.region.slice()) == (["label0", "label1"], ndslice)
    assert str(shape) == "{label0=2,label1=3}"
    assert repr(shape) == (
        'Shape { labels: ["label0", "label1"], '
        "slice: Slice { offset: 0, sizes: [2, 3], strides: [3, 1] } }"
    )
    assert repr(shape.region).startswith('Region { labels: ["label0"')
    for view in (shape, shape.region):
        assert pickle.loads(pickle.dumps(view)) == view
        assert hash(pickle.loads(pickle.dumps(view))) == hash(view)
    assert shape != shape.region


def test_unity_has_one_rank_and_no_dimensions() -> None:
    assert (Shape.unity().ranks(), Shape.unity().labels) == ([0], [])


def test_at_drops_a_dimension_and_select_keeps_it() -> None:
    shape = HOSTS_GPUS.region.as_shape()
    assert shape.at("hosts", 1) == Shape(["gpus"], Slice(offset=4, sizes=[4], strides=[1]))
    assert shape.select("gpus", slice(1, None, 2)).ranks() == [1, 3, 5, 7]
    assert shape.select("gpus", slice(-1, None)).extent == Extent(["hosts", "gpus"], [2, 1])
    assert shape.index(gpus=3, hosts=1).ranks() == [7]
    assert shape.index() == shape


def test_at_and_select_refuse_what_is_not_there() -> None:
    shape = HOSTS_GPUS.region.as_shape()
    with pytest.raises(ValueError, match="index 2 is out of range for hosts of size 2"):
        shape.at("hosts", 2)
    with pytest.raises(OverflowError, match="hosts=-1 is negative"):
        shape.at("hosts", -1)
    with pytest.raises(ValueError, match="Dimension 'x' not found"):
        shape.at("x", 0)
    with pytest.raises(ValueError, match="selects nothing of size 4"):
        shape.select("gpus", slice(2, 2))
    with pytest.raises(ValueError, match="cannot be reversed"):
        shape.select("gpus", slice(None, None, -1))


def test_point_of_base_rank_counts_within_the_region() -> None:
    region = HOSTS_GPUS.region.as_shape().select("gpus", slice(2, 4)).region
    point = region.point_of_base_rank(7)
    assert (point.rank, dict(point), point.extent.sizes) == (3, {"hosts": 1, "gpus": 1}, [2, 2])
    with pytest.raises(ValueError, match="value 1 not in"):
        region.point_of_base_rank(1)
