"""The plan of a fetch, against gathering everything: on random meshes and placements."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.rdma.weights.reshard import ShardPiece, Split, local_shape, pieces_of, plan

np = pytest.importorskip("numpy")


@st.composite
def layouts(draw: st.DrawFn, num_dims: int) -> list[list[Split]]:
    """The splits of each rank of a mesh; a dimension of the mesh may leave the tensor whole."""
    mesh = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    dims = [draw(st.none() | st.integers(0, num_dims - 1)) for _ in mesh]
    if len(mesh) > 1 and dims[0] is not None and dims[0] in dims[1:]:
        late = draw(st.booleans())
    else:
        late = False
    return [
        [
            Split(dim, size, index, is_late=late and number == 0)
            for number, (dim, size, index) in enumerate(zip(dims, mesh, place, strict=True))
            if dim is not None
        ]
        for place in itertools.product(*map(range, mesh))
    ]


def box(start: Any, sizes: Any) -> tuple[slice, ...]:
    return tuple(slice(a, a + n) for a, n in zip(start, sizes, strict=True))


def local_of(whole: Any, pieces: tuple[ShardPiece, ...], shape: tuple[int, ...]) -> Any:
    """What a rank holds, cut out of the whole."""
    local = np.full(shape, -1, dtype=whole.dtype)
    for piece in pieces:
        local[box(piece.local, piece.sizes)] = whole[box(piece.start, piece.sizes)]
    assert (local != -1).all()
    return local


@given(st.data())
def test_what_is_fetched_is_what_a_full_gather_would_give(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    whole = np.arange(math.prod(shape)).reshape(shape)
    trainers = data.draw(layouts(len(shape)))
    readers = data.draw(layouts(len(shape)))
    held = [{"w": pieces_of(shape, splits)} for splits in trainers]
    locals_ = [
        local_of(whole, pieces_of(shape, splits), local_shape(shape, splits)) for splits in trainers
    ]
    for number, splits in enumerate(readers):
        wanted = pieces_of(shape, splits)
        filled = np.full(local_shape(shape, splits), -1)
        steps = plan({"w": wanted}, held, first=number)
        for step in steps:
            target = filled[box(step.target, step.sizes)]
            assert (target == -1).all(), "no element is copied twice"
            target[:] = locals_[step.rank][box(step.source, step.sizes)]
        assert (filled == local_of(whole, wanted, local_shape(shape, splits))).all()


@given(layouts(2))
def test_the_ranks_of_a_layout_hold_all_of_a_tensor(ranks: list[list[Split]]) -> None:
    seen = np.zeros((7, 5), dtype=int)
    for splits in ranks:
        for piece in pieces_of((7, 5), splits):
            seen[box(piece.start, piece.sizes)] += 1
    assert seen.min() >= 1
    assert seen.min() == seen.max(), "replicas hold all of it"


def test_a_scalar_is_one_piece() -> None:
    assert pieces_of((), []) == (ShardPiece((), (), ()),)
    (step,) = plan({"s": pieces_of((), [])}, [{"s": pieces_of((), [])}])
    assert step.sizes == ()


def test_readers_divide_the_work_among_replicas() -> None:
    held = [{key: pieces_of((4,), []) for key in "abcd"} for _ in range(2)]
    wanted = {key: pieces_of((4,), []) for key in "abcd"}
    ranks = [step.rank for step in plan(wanted, held)]
    assert sorted(ranks) == [0, 0, 1, 1]
    assert plan({"a": wanted["a"]}, held, first=1)[0].rank == 1


def test_what_is_lost_comes_from_another_or_is_an_error() -> None:
    whole = pieces_of((4,), [])
    half = pieces_of((4,), [Split(0, 2, 0)])
    assert [s.rank for s in plan({"w": whole}, [{"w": whole}, {"w": whole}], lost=frozenset({0}))]
    with pytest.raises(ValueError, match=r"no rank holds the elements of 'w' from \(2,\)"):
        plan({"w": whole}, [{"w": half}])
    with pytest.raises(ValueError, match="no rank holds"):
        plan({"w": whole}, [{"w": whole}], lost=frozenset({0}))
    with pytest.raises(KeyError, match="v"):
        plan({"v": whole}, [{"w": whole}])


def test_strided_shards_are_as_torch_has_them() -> None:
    """FSDP over tensor parallelism: the chunks of FSDP are of what tensor parallelism leaves."""
    (piece,) = pieces_of((8,), [Split(0, 2, 1, is_late=True), Split(0, 2, 0)])
    assert piece == ShardPiece((2,), (2,), (0,))
    (piece,) = pieces_of((8,), [Split(0, 2, 1), Split(0, 2, 0)])
    assert piece == ShardPiece((4,), (2,), (0,))
