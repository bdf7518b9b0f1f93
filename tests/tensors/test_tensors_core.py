"""What the tensor engine decides: keys, records, templates, borrows, programs. No torch, no
procs."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.tensors.core import program
from monarch.tensors.core.batch import FREE, Batch, FlushPolicy, decode, encode
from monarch.tensors.core.keys import FLOAT, Flattener, LocalTensor, NumberList, explain
from monarch.tensors.core.metas import intern_meta
from monarch.tensors.core.program import RecordedStep
from monarch.tensors.core.specs import CallSpec, SpecMaker, fill, paths
from monarch.tensors.core.storages import BorrowRefused, Storage, alias_pattern
from monarch.tensors.core.templates import FRESH, INPUT_ITSELF, Result, Template, TemplateCache


class _Any:
    """Stands for torch's tensors."""


class _Handle(_Any):
    def __init__(self, meta: Any) -> None:
        self._meta = meta


def _meta(size: tuple[int, ...], stride: tuple[int, ...] = (1,), dtype: str = "f4") -> Any:
    return intern_meta(size, stride, offset=0, dtype=dtype, device="cpu", layout="strided")


_flattener = Flattener(_Handle, _Any, pickle.dumps)


def _key(*args: Any, numbers: Any = (), **kwargs: Any) -> tuple[Any, ...]:
    key: list[Any] = []
    _flattener.flatten(args, kwargs, frozenset(numbers), key, [], [])
    return tuple(key)


def test_metas_that_look_equal_are_one_object() -> None:
    assert _meta((2, 3), (3, 1)) is _meta((2, 3), (3, 1))
    assert _meta((2, 3), (3, 1)) is not _meta((2, 3), (1, 2))
    assert _meta((2,)) is not _meta((2,), dtype="f8")


_LEAVES = [
    1, 1.0, True, 0, 0.0, -0.0, False, None, "1", b"1", 1j, complex(1, -0.0), (), [], {}, (1,), [1],
    [1, 1], (1, 1), {"a": 1}, {"a": True}, {1: 1}, {True: 1}, float("nan"), frozenset((1,)),
    frozenset((True,)), int, float, slice(1), range(1), [[1]], [(1,)], [[], 1],
    _Handle(_meta((2,))), _Handle(_meta((2,), (2,))), _Handle(_meta((2,), dtype="f8")),
]  # fmt: skip


@given(
    st.lists(st.sampled_from(range(len(_LEAVES))), max_size=3),
    st.lists(st.sampled_from(range(len(_LEAVES))), max_size=3),
)
def test_argument_lists_that_differ_have_different_keys(left: list[int], right: list[int]) -> None:
    keys = [_key(*(_LEAVES[n] for n in one)) for one in (left, right)]
    assert (keys[0] == keys[1]) == (left == right)


def test_nesting_counts_and_names_do() -> None:
    assert _key([1, 2], 3) != _key([1, 2, 3])
    assert _key((1, 2)) != _key([1, 2])
    assert _key(a=1) != _key(b=1)
    assert _key(a=[1.5]) != _key(a=[2.5])


def test_numbers_that_travel_beside_count_by_their_type() -> None:
    assert _key(0.5, numbers=[0]) == _key(0.25, numbers=[0]) == (FLOAT,)
    assert _key(1, numbers=[0]) == _key(2, numbers=[0]) != _key(1.0, numbers=[0])
    assert _key(True, numbers=[0]) != _key(False, numbers=[0])
    assert _key([0.5, 1.5], numbers=[NumberList(0)]) == _key([2.5, 3.5], numbers=[NumberList(0)])
    assert _key([0.5], numbers=[NumberList(0)]) != _key([0.5, 1.0], numbers=[NumberList(0)])
    assert _key(alpha=2.0, numbers=["alpha"]) == _key(alpha=3.0, numbers=["alpha"])


def test_a_tensor_of_this_process_is_told_apart() -> None:
    with pytest.raises(LocalTensor):
        _key([_Any()])


def test_flattening_and_specs_take_numbers_in_one_order() -> None:
    handle = _Handle(_meta((2,)))
    args = (handle, 0.5, [1.5, 2], 7)
    numbers: frozenset[Any] = frozenset((1, NumberList(2), 3))
    tensors: list[Any] = []
    scalars: list[Any] = []
    _flattener.flatten(args, {}, numbers, [], tensors, scalars)
    maker = SpecMaker(_Handle, numbers)
    specs, _ = maker.arguments(args, {})
    assert (maker.tensors, maker.scalars) == (tensors, scalars)
    assert tuple(fill(spec, tensors, scalars) for spec in specs) == args


def test_specs_say_where_tensors_are() -> None:
    maker = SpecMaker(str, frozenset())
    tree = ("x", [1, "y"], {"k": ("z", None)})
    spec = maker.spec(tree)
    assert maker.tensors == ["x", "y", "z"]
    assert paths(spec) == [(0,), (1, 1), (2, "k", 0)]
    assert fill(spec, [1, 2, 3]) == (1, [1, 2], {"k": (3, None)})


def test_a_miss_is_explained_by_the_nearest_known_call() -> None:
    assert explain(("add", 1), []) == "it is the first call of this operation"
    assert explain(("add", 1, 2), [("add", 5, 6), ("add", 1, 3)]) == "3 is now 2"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 2), st.lists(st.integers(0, 2**40), max_size=5),
            st.lists(st.one_of(st.floats(allow_nan=False), st.integers()), max_size=3),
        ),
        max_size=6,
    )
)  # fmt: skip
def test_batches_arrive_as_they_were(runs: list[tuple[int, int, list[int], list[Any]]]) -> None:
    batch = Batch()
    for mesh, stream, ints, scalars in runs:
        segment = batch.segment(mesh, stream)
        segment.ints += ints
        segment.scalars += scalars
    segments = batch.take()
    definitions, arrived = decode(encode([(3, b"x")], segments))
    assert definitions == [(3, b"x")]
    assert [(s.mesh, s.stream, list(s.records), s.scalars) for s in arrived] == [
        (s.mesh, s.stream, s.ints, s.scalars) for s in segments
    ]
    assert not batch.segments


def test_neighbours_of_one_mesh_and_stream_share_a_segment() -> None:
    batch = Batch()
    batch.segment(0, 0).ints.append(1)
    batch.segment(0, 0).ints += [FREE, 2, 7, 8]
    batch.segment(1, 0).ints.append(2)
    assert [one.ints for one in batch.segments] == [[1, FREE, 2, 7, 8], [2]]


def test_a_batch_leaves_when_nothing_comes_or_after_five_milliseconds() -> None:
    policy = FlushPolicy()
    assert policy.seconds_left(first=10.0, now=10.0002, num_new=3) == pytest.approx(0.0005)
    assert policy.seconds_left(first=10.0, now=10.0048, num_new=3) == pytest.approx(0.0002)
    assert policy.seconds_left(first=10.0, now=10.0002, num_new=0) == 0.0
    assert policy.seconds_left(first=10.0, now=10.006, num_new=9) == 0.0


def _template(name: str = "op") -> Template:
    return Template(name, [Result(FRESH, _meta((1,)))], num_in=0)


def test_the_template_that_was_not_used_for_longest_gives_way() -> None:
    cache = TemplateCache(most=4)
    kept: dict[int, Template] = {n: _template() for n in range(2)}
    for n, template in kept.items():
        assert cache.put((n,), template) == []
    gone = []
    for n in range(2, 9):
        assert (cache.young.get((0,)) or cache.older((0,))) is kept[0]
        gone += cache.put((n,), _template())
    assert kept[1] in gone
    assert kept[0] not in gone
    assert len(cache) <= 6


def test_results_that_are_inputs_themselves_have_no_number() -> None:
    template = Template("op", [Result(INPUT_ITSELF, None, 0), Result(FRESH, None)], num_in=1)
    assert template.num_out == 1


# Borrows


def test_a_lent_storage_is_read_only_until_all_borrows_are_back() -> None:
    storage = Storage()
    first, second = (storage.lend("here", mutable=False) for _ in range(2))
    assert (storage.access, first.access) == ("r", "r")
    with pytest.raises(BorrowRefused, match=r"Cannot borrow this tensor mutably .*non-mutably"):
        storage.lend("there", mutable=True)
    first.give_back()
    assert storage.access == "r"
    second.give_back()
    assert storage.access == "rw"


def test_a_storage_that_is_lent_to_be_written_is_nobody_elses() -> None:
    storage = Storage()
    borrow = storage.lend("here", mutable=True)
    assert (storage.access, borrow.access) == ("", "rw")
    with pytest.raises(BorrowRefused, match="here"):
        storage.lend("there", mutable=False)
    borrow.give_back()
    assert storage.access == "rw"


def test_a_storage_that_was_dropped_meanwhile_stays_so() -> None:
    storage = Storage()
    borrow = storage.lend("here", mutable=False)
    storage.drop("there")
    borrow.give_back()
    assert storage.access == ""


def test_alias_patterns_say_who_shares() -> None:
    a, b = Storage(), Storage()
    assert alias_pattern([a, b, a, b]) == (0, 1, 0, 1)


# Programs


def _run(
    made: program.WorkerProgram, values: dict[int, Any], record: list[int], scalars: Any = ()
) -> int:
    names = dict(made.constants)
    exec(made.text, names)
    after: int = names["op"](values, record, 0, iter(scalars))
    return after


def test_the_program_of_an_operation() -> None:
    spec = CallSpec([("t", 0), ("s", 0)], [("k", ("l", [("t", 1)]))], 2, 1, [()])
    made = program.operation(lambda x, s, k: x * s + k[0], spec)
    values = {1: 10, 2: 5}
    assert _run(made, values, [9, 3, 1, 2], [4]) == 4
    assert values[3] == 45


def test_results_are_found_by_their_paths_and_missing_ones_keep_their_place() -> None:
    spec = CallSpec([], [], 0, 0, [(1,), None, (0, "k")])
    made = program.operation(lambda: ({"k": None}, "second"), spec)
    values: dict[int, Any] = {}
    assert _run(made, values, [9, 3]) == 2
    assert values == {3: "second", 4: None}


def test_a_recording_deletes_what_it_needs_no_more() -> None:
    add = CallSpec([("t", 0), ("t", 1)], [], 2, 0, [()])
    steps = [RecordedStep(16, 10, (1, 2), (), 0), RecordedStep(16, 11, (10, 1), (), 0)]
    made = program.recording(
        [1, 2], [11], steps, lambda n: (int.__add__, add, None), lambda m: True
    )
    assert "del x10" in made.text
    values: dict[int, Any] = {5: 3, 6: 4}
    assert _run(made, values, [9, 20, 5, 6]) == 4
    assert values == {5: 3, 6: 4, 20: 10}


def test_the_line_of_a_traceback_says_which_step_failed() -> None:
    divide = CallSpec([("t", 0), ("t", 1)], [], 2, 0, [()])
    steps = [
        RecordedStep(1, 10, (1, 2), (), 0),
        RecordedStep(1, 11, (1, 3), (), 0),
        RecordedStep(1, 12, (11, 2), (), 0),
    ]
    made = program.recording(
        [1, 2, 3], [12], steps, lambda n: (int.__floordiv__, divide, None), lambda m: True
    )
    with pytest.raises(ZeroDivisionError) as caught:
        _run(made, {1: 8, 2: 2, 3: 0}, [9, 20, 1, 2, 3])
    trace = caught.value.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    assert made.step_at(trace.tb_lineno) == 1


def test_a_worker_leaves_out_the_steps_of_other_meshes() -> None:
    one = CallSpec([("t", 0)], [], 1, 0, [()])
    steps = [RecordedStep(1, 10, (1,), (), 7), RecordedStep(1, 11, (2,), (), 8)]
    made = program.recording(
        [1, 2], [10, 11], steps, lambda n: (abs, one, None), lambda mesh: mesh == 8
    )
    values: dict[int, Any] = {2: -4}
    assert _run(made, values, [9, 20, 1, 2]) == 4
    assert values == {2: -4, 21: 4}
