import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.mesh import Slice


@st.composite
def slices(draw: st.DrawFn) -> Slice:
    """Any legal slice: strides that nest, in any order of dimensions."""
    sizes = draw(st.lists(st.integers(1, 5), max_size=4))
    strides, reach = [], 0
    for size in sizes:
        stride = reach + draw(st.integers(1, 3))
        strides.append(stride)
        reach += (size - 1) * stride
    order = draw(st.permutations(range(len(sizes))))
    return Slice(
        offset=draw(st.integers(0, 100)),
        sizes=[sizes[dim] for dim in order],
        strides=[strides[dim] for dim in order],
    )


@given(slices())
def test_ranks_and_coordinates_round_trip(s: Slice) -> None:
    ranks = list(s)
    assert len(ranks) == len(s) == len(set(ranks))
    for position, rank in enumerate(ranks):
        assert s[position] == s.get(position) == rank
        assert s.index(rank) == position
        assert s.nditem(s.coordinates(rank)) == rank


@given(slices(), st.integers(0, 200))
def test_membership_is_that_of_the_list(s: Slice, value: int) -> None:
    assert (value in s) == (value in list(s))
    if value not in s:
        with pytest.raises(ValueError, match=f"value {value} not in"):
            s.index(value)


@given(slices())
def test_equal_after_pickling(s: Slice) -> None:
    copy = pickle.loads(pickle.dumps(s))
    assert copy == s
    assert hash(copy) == hash(s)


@given(st.lists(st.integers(0, 30)))
def test_from_list_covers_the_list_in_order(ranks: list[int]) -> None:
    assert [rank for s in Slice.from_list(ranks) for rank in s] == ranks


def test_from_list_runs() -> None:
    assert Slice.from_list([]) == []
    assert Slice.from_list([1, 3, 5]) == [Slice(offset=1, sizes=[3], strides=[2])]
    assert Slice.from_list([1, 2, 4, 5, 6]) == [
        Slice(offset=1, sizes=[2], strides=[1]),
        Slice(offset=4, sizes=[3], strides=[1]),
    ]


def test_new_row_major_is_dense() -> None:
    s = Slice.new_row_major([3, 4, 5])
    assert (s.offset, s.ndim, s.sizes, s.strides) == (0, 3, [3, 4, 5], [20, 5, 1])
    assert list(s) == list(range(60))


def test_without_dimensions_there_is_one_rank() -> None:
    s = Slice(offset=37, sizes=[], strides=[])
    assert (len(s), list(s), s[0], s.coordinates(37)) == (1, [37], 37, [])


def test_a_dimension_of_size_zero_has_no_ranks() -> None:
    s = Slice.new_row_major([2, 0])
    assert (len(s), list(s), 0 in s) == (0, [], False)


def test_indexing() -> None:
    s = Slice(offset=0, sizes=[2, 2, 2], strides=[4, 32, 1])
    assert (s[1], s[2]) == (1, 32)
    assert s[1:4] == (1, 32, 33)
    with pytest.raises(IndexError, match="index out of range"):
        s[8]
    with pytest.raises(TypeError):
        s[-1]
    with pytest.raises(IndexError, match="index out of range"):
        s.nditem([0, 2, 0])
    with pytest.raises(IndexError, match="expected 3 coordinates"):
        s.nditem([0])


def test_repr() -> None:
    s = Slice(offset=0, sizes=[2, 3], strides=[3, 1])
    assert repr(s) == str(s) == "Slice { offset: 0, sizes: [2, 3], strides: [3, 1] }"


@pytest.mark.parametrize(
    ("offset", "sizes", "strides", "message"),
    [
        (0, [2], [], "1 sizes do not match 0 strides"),
        (-1, [2], [1], "must not be negative"),
        (0, [-2], [1], "must not be negative"),
        (0, [2, 3], [2, 1], "strides overlap"),
        (0, [2], [0], "strides overlap"),
    ],
)
def test_what_is_no_slice(offset: int, sizes: list[int], strides: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Slice(offset=offset, sizes=sizes, strides=strides)


def test_the_stride_of_a_single_position_means_nothing() -> None:
    assert list(Slice(offset=3, sizes=[1, 2], strides=[0, 5])) == [3, 8]
