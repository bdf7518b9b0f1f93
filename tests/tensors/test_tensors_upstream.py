"""What programs and tests written for Monarch import of its tensor engine, and rely on."""

from __future__ import annotations

import importlib
import inspect as inspect_module
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import monarch
from monarch import (
    OpaqueRef,
    RemoteException,
    Stream,
    Tensor,
    call_on_shard_and_fetch,
    coalescing,
    fetch_shard,
    get_active_mesh,
    get_active_stream,
    grad_generator,
    inspect,
    no_mesh,
    remote,
)
from monarch._testing import BackendType, TestingContext
from monarch.builtins import set_manual_seed_remote
from monarch.cached_remote_function import remote_autograd_function
from monarch.common._coalescing import _record_and_define, compile
from monarch.common.function_caching import AliasOf, Storage, TensorGroup
from monarch.opaque_module import OpaqueModule
from monarch.opaque_object import OpaqueObject, opaque_method
from monarch.worker import _testing_function as functions

PATH = "monarch.worker._testing_function."


@pytest.fixture(scope="module")
def testing() -> Iterator[TestingContext]:
    with TestingContext() as context:
        yield context


@pytest.fixture
def mesh(testing: TestingContext) -> Iterator[Any]:
    with testing.local_device_mesh(1, 2, backend=BackendType.MESH) as mesh:
        yield mesh


def _held() -> int:
    return sum(map(len, get_active_mesh().client.recorder.flat_messages.values()))


@pytest.mark.long
def test_what_is_held_back_can_be_counted(mesh: Any) -> None:
    with coalescing():
        a = torch.zeros(3, 4)
        with coalescing():
            for _ in range(9):
                a = a + 1
        assert _held() == 2 * 10
        mesh_of_one = mesh.slice(gpu=1)
        with mesh_of_one.activate():
            torch.zeros(1)
        assert len(mesh.client.recorder.flat_messages[1]) == 11
    assert _held() == 0
    assert inspect(a).tolist() == [[9] * 4] * 3


@pytest.mark.long
def test_patterns_of_shared_memory(mesh: Any) -> None:
    with no_mesh.activate():
        local = torch.zeros(3, 4)
        group = TensorGroup([local, local.t(), torch.ones(2)])
        assert [one.storage for one in group.pattern.entries] == [
            Storage(12), AliasOf(0, 0), Storage(2),
        ]  # fmt: skip
        inner = TensorGroup([local[0], torch.ones(1)], parent=group)
        assert inner.pattern.entries[0].storage == AliasOf(-1, 0)
        made = inner.pattern.empty([group.tensors])
        assert made[0].untyped_storage() is local.untyped_storage()
    a = torch.zeros(3, 4)
    row, same = a[1], a.view(3, 4)
    assert a._fake is same._fake
    fakes = TensorGroup([row._fake, a._fake, torch.ones(2)._fake])
    assert [one.storage for one in fakes.pattern.entries] == [
        Storage(12), AliasOf(0, 0), Storage(2),
    ]  # fmt: skip
    out = torch.zeros(3, 4)
    assert a.reduce("gpu", out=out)._fake is out._fake


def test_a_recording_says_what_it_is_for(mesh: Any) -> None:
    captured = torch.ones(3)

    def work(x: Any, y: Any) -> Any:
        x.add_(captured)
        return x + y, x[:1]

    a, b = torch.ones(3), torch.ones(3)
    entry = _record_and_define(work, (a, b), {})
    assert [one.storage for one in entry.inputs_pattern.entries] == [Storage(3), Storage(3)]
    assert entry.matches([b._fake, a._fake])
    assert not entry.matches([a._fake, a._fake])
    assert not entry.matches([captured._fake, a._fake])
    total, first = entry.run((a, b), {})
    first.zero_()
    assert inspect([a, total])[0].tolist() == [0, 2, 2]
    assert inspect(total).tolist() == [3, 3, 3]


def test_a_compiled_function_sees_who_shares_memory_with_what_it_found(mesh: Any) -> None:
    found, calls = torch.ones(2), []

    @compile(verify=False)
    def work(x: Any) -> Any:
        calls.append(x)
        x.add_(1)
        return found * 2

    other = torch.zeros(2)
    assert inspect(work(other)).tolist() == [2, 2]
    assert inspect(work(found)).tolist() == [4, 4]
    assert inspect(work(found)).tolist() == [6, 6]
    assert inspect(work(other)).tolist() == [6, 6]
    assert len(calls) == 2

    @compile(verify=False)
    def passes(x: Any) -> Any:
        return x

    again = passes(other)
    again.add_(1)
    assert inspect(other).tolist() == [3, 3]

    @compile(verify=False)
    def fails(x: Any) -> Any:
        return remote(lambda x: x.no_such(), propagate=lambda x: x.clone())(x)

    with pytest.raises(RemoteException, match="no_such"):
        inspect(fails(other))
    assert inspect(other).tolist() == [3, 3]


def test_recordings_are_made_where_tests_of_programs_count_them(
    mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from monarch.common import _coalescing

    made = []

    def counted(*call: Any) -> Any:
        made.append(call)
        return _record_and_define(*call)

    monkeypatch.setattr(_coalescing, "_record_and_define", counted)
    add = compile(lambda a, b: a + b)
    a, b = torch.ones(2), torch.ones(2)
    found = [add(a, b) for _ in range(3)]
    assert inspect(found[2]).tolist() == [2, 2]
    assert len(made) == 2  # Recorded, and verified.


def test_a_recording_of_arguments_from_several_meshes(mesh: Any) -> None:
    first, second = mesh.slice(gpu=0), mesh.slice(gpu=1)

    @compile
    def double(a: Any, b: Any) -> Any:
        with first.activate():
            r = a + a
        return r, b + b  # Each on its own mesh.

    with first.activate():
        a = torch.ones(2)
    with second.activate():
        b = torch.ones(2) * 5
    for _ in range(3):
        r, s = double(a, b)
        assert (r.mesh, s.mesh) == (first, second)
        assert (inspect(r).tolist(), inspect(s).tolist()) == ([2, 2], [10, 10])
    b.drop()
    with pytest.raises(TypeError, match="DROPPED"):
        double(a, b)
    with pytest.raises(TypeError, match="DROPPED"):
        compile(lambda x: x + 1)(b)


def test_borrows_and_recordings(mesh: Any) -> None:
    other = Stream("side")
    a = torch.ones(2)
    lent, borrow = other.borrow(a)

    @compile(verify=False)
    def drops() -> None:
        borrow.drop()

    with pytest.raises(RuntimeError, match="cannot be dropped inside"):
        drops()

    @compile(verify=False)
    def uses() -> Any:
        with other.activate():
            return lent + 1

    assert inspect(uses()).tolist() == [2, 2]
    borrow.drop()
    with pytest.raises(TypeError, match="DROPPED"):
        uses()


@pytest.mark.long
def test_streams_run_side_by_side(mesh: Any) -> None:
    """Whichever is written first: each waits for the other."""
    new_barrier = remote(PATH + "new_barrier_hackery", propagate=lambda threads: torch.zeros(1))
    wait = remote(PATH + "wait_barrier_hackery", propagate="inspect")
    other = Stream("beside")
    for is_main_first in (False, True):
        with other.activate():
            t = new_barrier(2)
        mine, borrow = get_active_stream().borrow(t)
        with borrow:
            if is_main_first:
                wait(mine)
            with other.activate():
                wait(t)
            if not is_main_first:
                wait(mine)
        assert fetch_shard(t).result(timeout=60).tolist() == [0]


@pytest.mark.long
def test_functions_by_path(mesh: Any) -> None:
    processed = remote(PATH + "do_some_processing")
    assert call_on_shard_and_fetch(processed, "x").get() == "x processed"
    from monarch.common import remote as counters

    many = remote(PATH + "how_many_of_these_do_you_want")
    before = counters._miss, counters._hit
    a, b = torch.ones(2, 3), torch.ones(2, 3)
    assert [len(many(2, x)) for x in (a, b)] == [2, 2]
    assert len(many(3, a)) == 3
    assert len(many(2, torch.ones(4))) == 2
    assert (counters._miss - before[0], counters._hit - before[1]) == (3, 1)
    whole = torch.arange(8.0)
    chunks = remote(PATH + "remote_chunk")(whole)
    assert len(chunks[0]._aliases.aliases) == 5
    assert len(a._aliases.aliases) == 1
    chunks[3].zero_()
    assert [inspect(one).tolist() for one in chunks] == [[0, 1], [2, 3], [4, 5], [0, 0]]
    outer = remote(
        PATH + "outer_remote_function_that_calls_inner", propagate=lambda: torch.zeros(1)
    )
    with pytest.raises(RemoteException) as caught:
        inspect(outer())
    # Both functions of the user's, and nothing of ours.
    assert "in outer_remote_function_that_calls_inner" in caught.value.worker_error_string
    assert "in inner_remote_function_that_fails" in caught.value.worker_error_string
    assert "executor.py" not in caught.value.worker_error_string
    work = remote(PATH + "do_bogus_tensor_work", propagate=lambda x, y, fail_rank=None: x)
    with pytest.raises(RemoteException) as caught:
        inspect(work(a, b, fail_rank=1), host=0, gpu=0)
    assert caught.value.rank == 1


def test_an_autograd_function_of_several_results(mesh: Any) -> None:
    function = remote_autograd_function(functions.TestRemoteAutogradFunction)
    assert remote_autograd_function(function) is function
    x, y = torch.ones(4).requires_grad_(), (torch.ones(4) * 2).requires_grad_()
    first, same, extra, number = function.apply(x, y)
    assert number == 4
    assert all(isinstance(one, Tensor) for one in (first, same, extra))
    (first.sum() + same.sum() * 3).backward()
    assert inspect(first.detach()).tolist() == [2] * 4
    assert inspect([x.grad, y.grad])[1].tolist() == [3] * 4
    # Without a gradient the function takes its other way.
    assert inspect(function.apply(y.detach(), y)[0].detach()).tolist() == [4] * 4


def test_an_autograd_function_that_keeps_its_process_group(mesh: Any) -> None:
    function = remote_autograd_function(functions._TestMultiplyAllReduce)
    x = (mesh.rank("gpu") + 1.0).requires_grad_()
    y = torch.tensor(3.0).requires_grad_()
    z = function.apply(x, y, mesh.process_group("gpu"))
    z.backward()
    assert inspect(z.detach()).item() == 9
    assert inspect(x.grad).item() == 6


def test_objects_by_path(mesh: Any) -> None:
    class Foo(OpaqueObject):
        @opaque_method
        def add(self, b: Any) -> Any:
            return b.clone()

    assert inspect(Foo(PATH + "WorkerFoo", 4.0).add(torch.ones(()))).item() == 5
    length = remote(
        PATH + "opaque_ref_key_table_length_worker", propagate=lambda: torch.zeros((), dtype=int)
    )
    make = remote(PATH + "create_opaque_ref_worker", propagate=lambda: OpaqueRef(None))
    before = inspect(length()).item()
    ref = make()
    assert inspect(length()).item() == before + 1
    with pytest.raises(RuntimeError, match="read it in a remote function"):
        print(ref.value)
    del ref
    assert inspect(length()).item() == before
    setup = remote(
        PATH + "setup_state_worker", propagate=lambda: [OpaqueRef(None) for _ in range(4)]
    )
    step = remote(PATH + "iteration_worker", propagate=lambda *args: torch.tensor(0.0))
    set_manual_seed_remote(7)  # The data, its order and the model are random.
    refs = setup()
    losses = [inspect(step(*refs, mesh.process_group("gpu"))).item() for _ in range(2)]
    assert losses[1] < losses[0]


def test_what_torch_distributed_has(mesh: Any) -> None:
    group = mesh.process_group("gpu")
    rank = mesh.rank("gpu")
    mine = (rank + 1).float().view(1)

    def both(tensor: Any) -> list[Any]:
        return [inspect(tensor, host=0, gpu=n).tolist() for n in range(2)]

    assert both(functions.all_reduce(mine.clone(), group=group)) == [[3], [3]]
    assert inspect(functions.barrier(group)).tolist() == [1]
    parts = functions.all_gather([torch.zeros(1), torch.zeros(1)], mine, group=group)
    assert [both(part) for part in parts] == [[[1], [1]], [[2], [2]]]
    whole = torch.zeros(2)
    functions.all_gather_into_tensor(whole, mine, group=group)
    assert both(whole) == [[1, 2], [1, 2]]
    assert both(functions.broadcast(mine.clone(), src=1, group=group)) == [[2], [2]]
    assert both(functions.reduce(mine.clone(), dst=0, group=group))[0] == [3]
    pair = torch.cat([mine, mine * 10])
    for scattered in (
        functions.reduce_scatter_tensor(torch.zeros(1), pair, group=group),
        functions.reduce_scatter(torch.zeros(1), [mine, mine * 10], group=group),
    ):
        assert both(scattered) == [[3], [30]]
    gathered = [torch.zeros(1), torch.zeros(1)]
    functions.gather(mine, gathered, dst=0, group=group)
    assert [both(one)[0] for one in gathered] == [[1], [2]]
    rows = torch.arange(8.0).view(4, 2) * rank
    part = functions.reduce_scatter_tensor(torch.zeros(4), rows, group=group)
    assert both(part) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    given = functions.scatter(torch.zeros(1), [mine, mine * 10], src=0, group=group)
    assert both(given) == [[1], [10]]
    exchanged = functions.all_to_all_single(torch.zeros(2), pair, group=group)
    assert both(exchanged) == [[1, 2], [10, 20]]
    listed = functions.all_to_all([torch.zeros(1), torch.zeros(1)], [mine, mine * 10], group=group)
    assert [both(one) for one in listed] == [[[1], [10]], [[2], [20]]]


PUBLIC = {
    "common._coalescing": "coalescing",
    "common.borrows": "Borrow",
    "common.device_mesh": (
        "DeviceMesh RemoteProcessGroup get_active_mesh no_mesh slice_mesh to_mesh"
    ),
    "common.function": "resolvers",
    "common.opaque_ref": "OpaqueRef",
    "common.remote": "call_on_shard_and_fetch remote",
    "common.selection": "Selection",
    "common.stream": "Stream get_active_stream",
    "common.tensor": "Tensor reduce reduce_ slice_mesh to_mesh",
    "fetch": "call_on_shard_and_fetch fetch_shard inspect show",
    "gradient_generator": "grad_function grad_generator",
    "mesh_controller": "RemoteException spawn_tensor_engine",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_a_name_is_the_same_at_all_its_addresses(module: str) -> None:
    found = importlib.import_module(f"monarch.{module}")
    for name in PUBLIC[module].split():
        assert getattr(found, name) is getattr(monarch, name, getattr(found, name))


def test_arguments_have_the_names_that_programs_give_them_by() -> None:
    from monarch.common.tree import flatten, flattener

    for function, names in {
        Stream.borrow: "self t mutable",
        flatten: "tree cond",
        flattener: "tree cond",
        Tensor.reduce: "self dims reduction scatter mesh out",
        Tensor.to_mesh: "self mesh stream",
        call_on_shard_and_fetch: "remote args shard kwargs",
        grad_generator: "roots with_respect_to grad_roots",
        OpaqueObject.call_method: "self method_name propagation args kwargs",
        OpaqueModule.call_method: "self method_name propagation args kwargs",
        monarch.reduce: "tensors args kwargs",
        monarch.reduce_: "tensors args kwargs",
        monarch.to_mesh: "tensors args kwargs",
        monarch.slice_mesh: "tensors args kwargs",
    }.items():
        assert list(inspect_module.signature(function).parameters) == names.split()


def test_names_that_programs_import() -> None:
    from monarch.builtins import random as random_functions
    from monarch.common.tree import flattener
    from monarch.gradient._gradient_generator import GradientGenerator as at_its_module
    from monarch.gradient_generator import GradientGenerator

    assert at_its_module is GradientGenerator
    names = "get_rng_state_all_cuda_remote set_rng_state_all_cuda_remote seed_remote"
    assert all(callable(getattr(random_functions, name)) for name in names.split())
    assert flattener((8, {"a": 10}))((0, {"a": 1})) == [0, 1]
