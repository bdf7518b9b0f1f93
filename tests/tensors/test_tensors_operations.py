"""Operations, values, errors, remote functions and streams on two procs."""

from __future__ import annotations

import copy
import gc
import logging
import os
import time
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from monarch import (
    RemoteException,
    Stream,
    Tensor,
    call_on_shard_and_fetch,
    coalescing,
    explain,
    fetch_shard,
    get_active_mesh,
    get_active_stream,
    inspect,
    no_mesh,
    remote,
)
from monarch import compile as record
from monarch.actor import Actor, ProcMesh, endpoint
from monarch.tensors.core.storages import BorrowRefused
from tests.support import wait_for

bad = remote(lambda x: x.no_such(), propagate=lambda x: x + 1)
rank_of = remote(
    lambda mesh: torch.tensor(mesh.dims["gpus"].rank), propagate=lambda mesh: torch.tensor(0)
)


@remote(propagate=lambda x, rank: x + 1)
def fails_on_one(x: Any, rank: Any) -> Any:
    if int(rank) == 1:
        raise ValueError("only here")
    return x + 1


@pytest.mark.long
def test_an_operation_runs_on_every_proc(procs: ProcMesh) -> None:
    with procs.activate():
        x = torch.ones(2, 3)
        y = (x + procs.rank_tensor("gpus")) @ x.t()
    assert isinstance(y, Tensor)
    assert inspect(y, gpus=0).tolist() == [[3, 3], [3, 3]]
    assert fetch_shard(y, {"gpus": 1}).result().tolist() == [[6, 6], [6, 6]]
    # The mesh of its tensors is enough.
    assert inspect(y * 2).tolist() == [[6, 6], [6, 6]]


def test_trees_of_tensors_are_fetched_at_once(mesh: Any) -> None:
    tree = {"a": torch.ones(1), "b": [torch.zeros(2), 3, "x"]}
    found = inspect(tree)
    assert found["a"].tolist() == [1]
    assert (found["b"][0].tolist(), found["b"][1:]) == ([0, 0], [3, "x"])


def test_active_from_the_call_on(procs: ProcMesh) -> None:
    with pytest.raises(ValueError, match="no device mesh is active"):
        get_active_mesh()
    mesh = procs._device_mesh
    mesh.activate()
    assert get_active_mesh() is mesh
    with no_mesh.activate():
        assert type(torch.ones(1)) is torch.Tensor
    assert isinstance(torch.ones(1), Tensor)
    mesh.deactivate()
    assert type(torch.ones(1)) is torch.Tensor
    with procs.activate(), no_mesh.activate(), procs.activate():
        assert isinstance(torch.ones(1), Tensor)


def test_meshes_are_objects_of_their_own(procs: ProcMesh) -> None:
    mesh = procs._device_mesh
    assert procs.rename(gpus="dp")._device_mesh.names == ("dp",)
    assert mesh.slice(gpus=0) is procs.slice(gpus=0)._device_mesh
    assert mesh(gpus=1).processes.offset == 1
    assert mesh.to_tensor().tolist() == [0, 1]
    assert "rank  gpus" in mesh.to_table()
    assert (mesh.size("gpus"), mesh.sizes) == (2, {"gpus": 2})
    with procs.activate():
        assert [inspect(mesh.process_idx(), gpus=n).item() for n in range(2)] == [0, 1]
        assert set(mesh.ranks) == {"gpus"}
    last = mesh.slice(gpus=1)
    with last.activate():
        # Of the whole mesh, where one works.
        rank = mesh.rank("gpus") * torch.ones(1)
    assert rank.mesh is last
    assert inspect(rank).tolist() == [1]
    with last.activate():
        assert mesh.slice(gpus=0).rank(()).mesh is not last
    with pytest.raises(KeyError, match="does not have dimension 'x'"):
        mesh.rank("x")
    with pytest.raises(NotImplementedError):
        mesh.stack()


def test_arguments_that_cannot_be_are_named(procs: ProcMesh) -> None:
    local = torch.ones(2)
    half = procs.slice(gpus=0)
    with procs.activate():
        x = torch.ones(2)
        for wrong in (lambda: x + local, lambda: x.add(local), lambda: torch.cat([x, local])):
            with pytest.raises(TypeError, match=r"ERROR_0(.|\n)*LOCAL_TENSOR(.|\n)*no_mesh"):
                wrong()
    with half.activate():
        y = torch.ones(2)
        with pytest.raises(TypeError, match=r"aten.add.Tensor\(.*ERROR_0.*(.|\n)*WRONG_MESH"):
            x + y
    with (
        procs.activate(),
        Stream("other").activate(),
        pytest.raises(TypeError, match="WRONG_STREAM"),
    ):
        x + 1
    z = x.view(1, 2)
    x.drop()
    assert z.dropped
    with pytest.raises(
        TypeError, match=r"DROPPED(.|\n)*tensor is dropped at:(.|\n)*test_tensors_op"
    ):
        z + 1
    with pytest.raises(TypeError, match="DROPPED"):
        fetch_shard(z)


def test_wrong_shapes_raise_where_they_are_written(mesh: Any, caplog: Any) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(RuntimeError, match=r"(?i)broadcast"):
        torch.ones(2) + torch.ones(3)
    assert not caplog.records


def test_what_depends_on_values_says_what_to_do(mesh: Any) -> None:
    x = torch.ones(2)
    for wrong in (lambda: x.sum().item(), lambda: bool(x.sum() > 0), lambda: x.nonzero()):
        with pytest.raises(TypeError, match="fetch_shard"):
            wrong()


def test_a_shard_map_is_whole(procs: ProcMesh) -> None:
    with procs.split(gpus=("a", "b"), a=2).activate():
        x = torch.ones(1)
        with pytest.raises(ValueError, match=r"Missing key 'b' in shard map. Need all of"):
            fetch_shard(x, a=0)


# Failures


def test_a_failure_names_the_line_and_spares_the_rest(mesh: Any) -> None:
    x = torch.ones(3)
    y = bad(x)  # The line.
    z = y * 2
    other = x + 1
    with pytest.raises(RemoteException) as caught:
        inspect(z)
    text = str(caught.value)
    assert "A remote function has failed asynchronously on rank 0" in text
    assert "no_such" in caught.value.worker_error_string
    assert caught.value.controller_frames[-1].line == "y = bad(x)  # The line."
    assert inspect(other).tolist() == [2, 2, 2]
    # What is made of it later is spoiled as well.
    with pytest.raises(RemoteException):
        inspect(z + 1)


def test_one_rank_that_fails_does_not_hang_the_others(mesh: Any) -> None:
    x = torch.ones(3)
    y = fails_on_one(x, mesh.rank("gpus"))
    total = y.reduce("gpus")
    with pytest.raises(RemoteException, match="only here") as caught:
        inspect(total, gpus=0)
    assert caught.value.rank == 1
    assert inspect(x.reduce("gpus")).tolist() == [2, 2, 2]


def test_a_recording_that_fails_before_its_reduce_does_not_hang_either(mesh: Any) -> None:
    @record(verify=False)
    def step(x: Any, rank: Any) -> Any:
        return fails_on_one(x, rank).reduce("gpus", "sum").reduce("gpus", "max")

    x = torch.ones(2)
    with pytest.raises(RemoteException, match="only here"):
        inspect(step(x, mesh.rank("gpus")))
    with pytest.raises(RemoteException, match="only here"):
        inspect(step(fails_on_one(x, mesh.rank("gpus")), mesh.rank("gpus")))
    assert inspect(x.reduce("gpus")).tolist() == [2, 2]


def test_a_failed_write_spoils_all_views(mesh: Any) -> None:
    @remote(propagate=lambda x: x.add_(1))
    def fails(x: Any) -> Any:
        raise ValueError("no")

    x = torch.ones(2, 2)
    row = x[0]
    fails(x.view(-1))
    later = row.clone()
    with pytest.raises(RemoteException):
        inspect(row)
    with pytest.raises(RemoteException):
        inspect(later)


def test_a_function_that_workers_cannot_find_fails_like_any(mesh: Any) -> None:
    missing = remote("no.such.module.function", propagate=lambda x: x)
    with pytest.raises(RemoteException, match=r"no\.such\.module\.function"):
        inspect(missing(torch.ones(1)))


@pytest.mark.long
def test_a_raised_failure_does_not_keep_tensors(procs: ProcMesh) -> None:
    client = procs._device_mesh.client

    def fail() -> None:
        with procs.activate():
            y = bad(torch.ones(3))
            with pytest.raises(RemoteException):
                inspect(y)

    fail()
    gc.collect()
    client.settle()
    before = client.workers.num_values.call().get().values()[0][0]
    for _ in range(3):
        fail()
    gc.collect()
    client.settle()
    assert client.workers.num_values.call().get().values()[0][0] == before


def test_failures_are_found_on_other_fetches_order(mesh: Any) -> None:
    y = bad(torch.ones(1))
    first = fetch_shard(y)
    del y
    second = fetch_shard(torch.ones(1))
    assert second.result().item() == 1
    with pytest.raises(RemoteException):
        first.result()


# Templates


def test_what_was_seen_misses_no_more(mesh: Any) -> None:
    def work(number: float) -> Any:
        x = torch.rand(3, 4)
        x.mul_(number).add_(1)
        return torch.cat([x[0], x.t()[:, 0]], 0).sum() * number

    work(0.5)
    before = mesh.client.cache.num_misses
    for n in range(5):
        work(n / 7)
    assert mesh.client.cache.num_misses == before
    with explain() as lines:
        work(3)  # An int.
        torch.rand(5, 4)
    assert any("int" in line for line in lines)


@pytest.mark.parametrize("number", [1, 1.0, True])
def test_equal_numbers_of_other_types_are_other_operations(mesh: Any, number: Any) -> None:
    local = torch.ones(1, dtype=torch.int64)
    for n in (1, 1.0, True, number):
        with no_mesh.activate():
            wanted = torch.ones(1, dtype=torch.int64) * n
        assert (torch.ones(1, dtype=torch.int64) * n).dtype == wanted.dtype
    assert local.dtype == torch.int64
    assert torch.arange(12.0).shape == (12,)
    assert torch.arange(9.0).shape == (9,)


@pytest.mark.long
def test_results_that_are_undefined_keep_their_place(mesh: Any) -> None:
    def lstm() -> Any:
        torch.manual_seed(0)
        module = nn.LSTM(3, 4)
        for n, parameter in enumerate(module.parameters()):
            parameter.data.copy_(
                torch.linspace(-1, 1, parameter.numel()).view(parameter.shape) * (n + 1)
            )
        out, _ = module(torch.linspace(0, 1, 6).view(2, 1, 3))
        out.sum().backward()
        conv = nn.Conv1d(1, 2, 2)
        for parameter in conv.parameters():
            parameter.data.fill_(0.5)
        conv(torch.ones(1, 1, 5)).sum().backward()  # No gradient for its input.
        return [p.grad for p in (*module.parameters(), *conv.parameters())]

    found = inspect(lstm())
    with no_mesh.activate():
        wanted = lstm()
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)


def test_operations_that_change_shape_in_place_change_the_handle(mesh: Any) -> None:
    x = torch.ones(2, 3)
    x.t_().unsqueeze_(0)
    assert x.shape == (1, 3, 2)
    assert inspect(x).shape == (1, 3, 2)


def test_numbers_that_follow_from_constants_are_known(mesh: Any) -> None:
    step = torch.tensor(0.0)
    step += 1
    assert (step * 2).item() == 2.0
    step.add_(torch.rand(()))
    with pytest.raises(TypeError, match=r"\.item\(\)"):
        step.item()


def test_copies_are_copies(mesh: Any) -> None:
    module = nn.Linear(2, 2)
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.weight.zero_()
    assert inspect(module.weight).tolist() != inspect(other.weight).tolist()
    assert isinstance(other.weight, nn.Parameter)


def test_answers_of_endpoints_are_local_whatever_is_active(procs: ProcMesh) -> None:
    class Gives(Actor):
        @endpoint
        def give(self) -> Any:
            return torch.ones(5000)

    actors = procs.spawn("gives", Gives)
    with procs.activate():
        values = actors.give.call().get()
        assert [type(value) for value in values.values()] == [torch.Tensor, torch.Tensor]


@pytest.mark.long
def test_what_is_freed_here_is_freed_there(procs: ProcMesh) -> None:
    client = procs._device_mesh.client
    gc.collect()
    client.settle()
    before = [num for num, _ in client.workers.num_values.call().get().values()]
    with procs.activate():
        x = torch.ones(4)
        for _ in range(500):
            x = x + 1
        half = procs._device_mesh.slice(gpus=0)
        moved = x.slice_mesh(gpus=0).to_mesh(half)
    assert inspect(x).tolist() == [501] * 4
    del x, moved
    gc.collect()
    client.settle()
    assert [num for num, _ in client.workers.num_values.call().get().values()] == before


# Remote functions


def test_a_remote_function_gets_meshes_and_gives_tensors(mesh: Any) -> None:
    r = rank_of(mesh)
    assert [inspect(r, gpus=n).item() for n in range(2)] == [0, 1]


def test_what_comes_out_is_found_out_on_a_shard_and_remembered(mesh: Any) -> None:
    from monarch.common import remote as counters

    @remote
    def views(x: Any, n: int) -> Any:
        y = x[:n]
        y.add_(1)
        return y, (x * 2).t(), "text"

    x = torch.zeros(3, 2)
    misses, hits = counters._miss, counters._hit
    a, b, text = views(x, 2)
    assert (a.shape, b.shape, text) == ((2, 2), (2, 3), "text")
    views(x, 2)
    assert (counters._miss - misses, counters._hit - hits) == (1, 1)
    views(x, 1)
    assert counters._miss - misses == 2
    # Written to as often as it was called, and not when it was only found out.
    assert inspect(x).tolist() == [[3, 3], [2, 2], [0, 0]]
    a.zero_()
    assert inspect(x).tolist()[0] == [0, 0]


@pytest.mark.long
def test_random_numbers_are_as_if_nothing_was_found_out(mesh: Any) -> None:
    from monarch.builtins.random import set_manual_seed_remote

    draw = remote(lambda n: torch.rand(n))
    set_manual_seed_remote(7)
    first = inspect(draw(3))
    with no_mesh.activate():
        torch.manual_seed(7)
        assert torch.equal(first, torch.rand(3))


def test_other_propagation(mesh: Any) -> None:
    assert remote(lambda x: None, propagate="inspect")(torch.ones(1)) is None
    with pytest.raises(NotImplementedError):
        remote(lambda x: x, propagate="mocked")(torch.ones(1))
    with pytest.raises(ValueError, match="propagate is"):
        remote(lambda x: x, propagate="no")


def test_adverbs_give_what_functions_return(procs: ProcMesh, mesh: Any) -> None:
    r = mesh.rank("gpus")
    number = remote(lambda x: int(x) + 1)
    assert number.call(r).get().values() == [1, 2]
    assert [one.get() for one in number.stream(r)] == [1, 2]
    assert number.choose(r).get() in (1, 2)
    with pytest.raises(ValueError, match="exactly 1"):
        number.call_one(r)
    with mesh.slice(gpus=1).activate():
        assert number.call_one(r).get() == 2
    assert call_on_shard_and_fetch(number, r, shard={"gpus": 1}).get() == 2
    with pytest.raises(RemoteException, match="no_such"):
        remote(lambda x: x.no_such()).call(r).get()
    with no_mesh.activate():
        with pytest.raises(TypeError, match="require an active device mesh"):
            remote(lambda: None, propagate="inspect")()
        with pytest.raises(ValueError, match="requires an active proc_mesh"):
            number.call(r)
    with mesh.slice(gpus=0).activate():
        half = torch.ones(1)
    with pytest.raises(ValueError, match="is not a subset"):
        number.call(half)


def test_functions_that_travel_whole_are_sent_as_they_are_now(mesh: Any) -> None:
    scale = [2.0]
    double = remote(lambda x: x * scale[0], propagate=lambda x: x)
    x = torch.ones(1)
    assert inspect(double(x)).item() == 2
    scale[0] = 3.0
    assert inspect(double(x)).item() == 3


def test_numbers_for_a_rule_count(mesh: Any) -> None:
    grow = remote(lambda x, k: x.repeat(int(k)), propagate=lambda x, k: x.repeat(int(k)))
    x = torch.ones(2)
    assert grow(x, 2.0).shape == (4,)
    assert grow(x, 3.0).shape == (6,)


def test_a_process_group_for_a_remote_function(mesh: Any) -> None:
    def total(x: Any, group: Any) -> Any:
        x = x.clone()
        torch.distributed.all_reduce(x, group=group)
        return x

    group = mesh.process_group("gpus")
    assert group.size() == 2
    out = remote(total, propagate=lambda x, group: x.clone())(torch.ones(2), group)
    assert inspect(out).tolist() == [2, 2]


@pytest.mark.long
def test_dtensor_inside_of_a_remote_function(mesh: Any) -> None:
    def whole(x: Any, mesh: Any) -> Any:
        from torch.distributed.tensor import DTensor, Shard

        return DTensor.from_local(x, mesh.to_device_mesh(), [Shard(0)]).full_tensor()

    rank = mesh.rank("gpus").float().view(1)
    out = remote(whole, propagate=lambda x, mesh: x.new_empty(2))(rank, mesh)
    assert inspect(out).tolist() == [0, 1]


# Streams


def _held_by(path: str) -> Any:
    deadline = time.monotonic() + 30.0
    while not os.path.exists(path):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return torch.ones(())


def test_a_template_is_kept_while_a_stream_is_behind(mesh: Any, tmp_path: Any) -> None:
    with Stream("other").activate():
        torch.ones(1)  # From here on each stream has a thread.
    gate = tmp_path / "open"
    remote(_held_by, propagate=lambda path: torch.ones(()))(str(gate))
    number = torch.tensor(3.0)  # Its template is for this call alone.
    client = mesh.client
    client.flush()
    num = client.num_batches
    torch.ones(2)
    client.flush()  # Here the workers are told to forget it.
    assert client.num_batches > num
    gate.touch()
    assert inspect(number).item() == 3


def test_streams_lend_to_each_other(mesh: Any) -> None:
    other = Stream("other")
    assert get_active_stream().name == "main"
    x = torch.ones(3)
    lent, borrow = other.borrow(x)
    with other.activate():
        y = lent * 3
    assert inspect(x + 1).tolist() == [2, 2, 2]
    with pytest.raises(TypeError, match="MUTATING_BORROW: this tensor would be mutated"):
        x.add_(1)
    with pytest.raises(BorrowRefused, match="already being borrowed"):
        other.borrow(x, mutable=True)
    with other.activate(), pytest.raises(TypeError, match="MUTATING_BORROW"):
        lent.add_(1)
    borrow.drop()
    x.add_(1)
    assert (inspect(x).tolist(), inspect(y).tolist()) == ([2, 2, 2], [3, 3, 3])
    lent, borrow = other.borrow(x, mutable=True)
    with pytest.raises(TypeError, match="BORROWED"):
        x + 1
    with borrow, other.activate():
        lent.mul_(5)
    assert inspect(x).tolist() == [10, 10, 10]


@pytest.mark.long
def test_a_borrow_that_is_forgotten_is_dropped_with_a_warning(mesh: Any) -> None:
    x = torch.ones(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pair = Stream("other").borrow(x)
        del pair
        gc.collect()
    assert any("a borrow was not dropped" in str(one.message) for one in caught)
    x.add_(1)


# Recordings


def test_coalescing_sends_once(mesh: Any) -> None:
    client = mesh.client
    client.flush()
    client.flush()  # What gave way is told with the batch after; else a thread would send that.
    before = client.num_batches
    with coalescing():
        x = torch.ones(1)
        for _ in range(300):
            x = x + 1
        with pytest.raises(NotImplementedError, match="during a coalescing block"):
            fetch_shard(x)
        assert client.num_batches == before
    assert client.num_batches == before + 1
    assert inspect(x).item() == 301


def test_a_compiled_step_is_one_operation(mesh: Any) -> None:
    weight = torch.ones(3, requires_grad=True)
    calls = []

    @record
    def step(x: Any, rate: float) -> Any:
        calls.append(rate)
        loss = (x * weight).sum()
        loss.backward()
        with torch.no_grad():
            weight.sub_(weight.grad.reduce_("gpus", "avg"), alpha=rate)
            weight.grad = None
        return loss.detach(), x.view(3, 1)

    x = torch.ones(3)
    losses = [step(x, 0.5)[0] for _ in range(4)]
    assert [inspect(loss).item() for loss in losses] == [3.0, 1.5, 0.0, -1.5]
    assert len(calls) == 2  # The second was to verify.
    mesh.client.flush()  # Else a thread would, between two looks at what is sent and what is not.
    before = mesh.client.num_ops
    _, view = step(x, 0.5)
    mesh.client.flush()
    assert mesh.client.num_ops == before + 1
    view.zero_()
    assert inspect(x).tolist() == [0, 0, 0]


def test_a_recording_is_for_arguments_that_look_alike(mesh: Any) -> None:
    calls = []

    @record(verify=False)
    def both(x: Any, y: Any, n: Any) -> Any:
        calls.append(n)
        x.add_(1)
        return x + y * n

    x, y = torch.ones(2), torch.ones(2)
    assert inspect(both(x, y, 1)).tolist() == [3, 3]
    assert inspect(both(x, x, 1)).tolist() == [6, 6]  # One memory.
    assert inspect(both(x, y, True)).tolist() == [5, 5]
    assert inspect(both(y, x, 1)).tolist() == [6, 6]
    assert len(calls) == 3


def test_a_recording_that_does_another_thing_each_time_is_refused(mesh: Any) -> None:
    numbers = iter(range(10))

    @record
    def different(x: Any) -> Any:
        return x + next(numbers)

    x = torch.ones(1)
    different(x)
    with pytest.raises(RuntimeError, match="diverges"):
        different(x)


def test_what_a_recording_made_ends_with_it(mesh: Any) -> None:
    kept = []

    @record(verify=False)
    def leaks(x: Any) -> Any:
        kept.append(x + 1)
        kept.append(x[0:1])
        return x * 2

    x = torch.ones(2)
    y = leaks(x)
    with pytest.raises(TypeError, match=r"DROPPED(.|\n)*end of the recording"):
        kept[0] + 1
    with pytest.raises(TypeError, match="DROPPED"):
        kept[1] + 1
    assert inspect(x + y).tolist() == [3, 3]
    with pytest.raises(TypeError, match="REQUIRES_GRAD"):
        leaks(torch.ones(2, requires_grad=True))


@pytest.mark.long
def test_a_number_that_a_recording_read_is_a_condition_of_it(mesh: Any) -> None:
    step = torch.tensor(1.0)

    @record(verify=False)
    def scaled(x: Any) -> Any:
        return x * step.item()

    x = torch.ones(1)
    assert inspect(scaled(x)).item() == 1
    step += 1
    assert inspect(scaled(x)).item() == 2


def test_a_recording_of_several_meshes_and_streams(mesh: Any) -> None:
    first, second = mesh.slice(gpus=0), mesh.slice(gpus=1)
    other = Stream("third")

    @record
    def pipeline(x: Any) -> Any:
        with first.activate():
            h = x * 2
        moved = h.to_mesh(second)
        with second.activate():
            lent, borrow = other.borrow(moved)
            with other.activate():
                y = lent + 1
            borrow.drop()
        return moved, y

    with first.activate():
        x = torch.ones(2)
    for _ in range(3):
        moved, y = pipeline(x)
        assert (inspect(moved).tolist(), inspect(y).tolist()) == ([2, 2], [3, 3])
    assert moved.mesh is second
    assert y.stream is other


# Actors


class Holder(Actor):
    def __init__(self) -> None:
        self.seen: list[float] = []

    @endpoint
    def add(self, x: Any) -> float:
        self.seen.append(float(x.sum()))
        x.add_(10)
        return float(x.sum())

    @endpoint
    def look(self) -> list[float]:
        return list(self.seen)

    @endpoint(propagate=lambda x: (x + 1, x.sum()))
    def twice(self, x: Any) -> Any:
        return x * 2, x.sum()

    @endpoint(propagate=lambda x: x)
    def fails(self, x: Any) -> Any:
        raise ValueError("not today")

    @endpoint
    def ends(self, x: Any) -> None:
        raise SystemExit


def test_actors_get_the_local_tensors_in_order(procs: ProcMesh) -> None:
    actors = procs.spawn("holder", Holder)
    with procs.activate():
        x = torch.ones(2)
        added = actors.add.call(x + procs.rank_tensor("gpus"))
        seen = actors.look.call()
        first = actors.add.call(x)
        x.mul_(2)
        y = x + 0
        actors.add.broadcast(x)  # A copy.
        assert added.get().values() == [22, 24]
        assert seen.get().values() == [[2], [4]]
        assert first.get().values() == [22, 22]
        assert inspect(y).tolist() == [22, 22]
        assert actors.look.call().get().values() == [[2, 2, 44], [4, 2, 44]]
        assert inspect(x).tolist() == [22, 22]
        assert actors.slice(gpus=1).add.call_one(x).get() == 64
        assert [inspect(x, gpus=n).tolist() for n in range(2)] == [[22, 22], [32, 32]]


def test_what_actors_return_becomes_tensors(procs: ProcMesh) -> None:
    actors = procs.spawn("holder", Holder)
    with procs.activate():
        x = torch.ones(2)
        double, total = actors.twice.rref(x)
        assert inspect(double + total).tolist() == [4, 4]
        failed = actors.fails.rref(x)
        with pytest.raises(RemoteException, match="not today"):
            inspect(failed + 1)
        with pytest.raises(NotImplementedError, match="propagate"):
            actors.add.rref(x)
        with pytest.raises(RuntimeError, match="failed before"):
            raise actors.add.call(bad(x)).exception().__cause__ or RuntimeError("failed before")
        assert inspect(x).tolist() == [1, 1]


class Keeps(Actor):
    def __init__(self, x: Any, number: int) -> None:
        self.x = x * number

    @endpoint
    def give(self) -> list[float]:
        return self.x.tolist()  # type: ignore[no-any-return]


def test_actors_are_made_with_the_local_tensors(procs: ProcMesh) -> None:
    with procs.activate():
        x = torch.ones(1) * procs.rank_tensor("gpus")
        actors = procs.spawn("keeps", Keeps, x + 1, 5)
        x.add_(7)
        assert actors.give.call().get().values() == [[5], [10]]
    with procs.slice(gpus=0).activate():
        half = torch.ones(1)
        with pytest.raises(ValueError, match="must be located on the same process as the actor"):
            procs.spawn("keeps", Keeps, half, 5)


def test_tensors_do_not_leave_their_procs(procs: ProcMesh) -> None:
    actors = procs.spawn("holder", Holder)
    with procs.slice(gpus=0).activate():
        half = torch.ones(1)
    with pytest.raises(ValueError, match="must be located on the same process as the actor"):
        actors.add.call(half)
    with pytest.raises(TypeError, match="stays with its controller"):
        copy.copy(half)
    wait_for(lambda: actors.look.call().get().values() == [[], []])
