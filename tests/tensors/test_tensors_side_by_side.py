"""What could wait for ever: groups of some ranks, streams that are behind, sends, recordings that
failed half way, and a mesh that ends and begins again."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from monarch import RemoteException, Stream, fetch_shard, remote
from monarch import compile as record
from monarch.actor import Actor, ProcMesh, SupervisionError, endpoint, this_host
from monarch.worker import _testing_function as functions
from tests.tensors.conftest import WITH_TORCH

_SECONDS = 60


def _value(tensor: Any, **where: int) -> Any:
    with tensor.stream.activate():
        return fetch_shard(tensor, **where).result(timeout=_SECONDS).tolist()


def _copy(x: Any, *rest: Any) -> Any:
    return x.clone()


@pytest.mark.long
def test_groups_that_only_some_ranks_are_in(four: ProcMesh) -> None:
    mesh = four._device_mesh
    with mesh.slice(hosts=0).activate():
        x = torch.ones(1)
        assert _value(x.reduce("gpus")) == [2]
    with mesh.slice(hosts=1, gpus=1).activate():
        assert _value(torch.ones(1).reduce()) == [1]
    with mesh.activate():
        y = torch.ones(1)
        # Other ranks have made other numbers of groups before.
        assert _value(y.reduce("hosts"), hosts=0, gpus=1) == [2]
        assert _value(y.reduce(), hosts=1, gpus=0) == [4]
        with pytest.warns(UserWarning, match="broadcast"):
            everywhere = x.slice_mesh(gpus=0).to_mesh(mesh)
        assert _value(everywhere, hosts=1, gpus=1) == [1]


def _total(x: Any, group: Any, sleeper: int) -> Any:
    if dist.get_rank() == sleeper:
        time.sleep(0.05)  # Which of two streams comes first differs from rank to rank.
    x = x.clone()
    dist.all_reduce(x, group=group)
    return x


@pytest.mark.long
def test_one_process_group_in_two_streams(mesh: Any) -> None:
    total, other = remote(_total, propagate=_copy), Stream("other")
    group = mesh.process_group("gpus")
    x = torch.ones(1)
    with other.activate():
        y = torch.ones(1) * 10
    for _ in range(3):
        with other.activate():
            theirs = total(y, group, 0)
        own = total(x, group, 1)
        assert (_value(own), _value(theirs)) == ([2], [20])


@pytest.mark.long
def test_groups_where_one_shard_is_asked_what_comes_out(mesh: Any) -> None:
    def of_mesh(x: Any, mesh: Any) -> Any:
        return _total(x, mesh.group("gpus"), -1)

    x = torch.ones(1)
    assert _value(remote(of_mesh)(x, mesh)) == [2]
    group = mesh.process_group("gpus")
    assert _value(remote(lambda x: _total(x, group, -1))(x)) == [2]
    assert _value(x.reduce("gpus")) == [2]

    def unknown(x: Any, mesh: Any) -> Any:
        return mesh.group("gpus", "gpus")

    with pytest.raises(RemoteException, match="give the function"):
        _value(remote(unknown, propagate=_copy)(x, mesh))


@pytest.mark.long
def test_sends_do_not_wait_for_their_receivers(mesh: Any) -> None:
    group, rank = mesh.process_group("gpus"), mesh.rank("gpus")
    assert _value(functions.all_reduce(torch.ones(1), group=group)) == [2]
    with mesh.slice(gpus=0).activate():
        functions.isend(torch.ones(2) * 5, 1, group=group)
    with mesh.slice(gpus=1).activate():
        received = torch.zeros(2)
        functions.irecv(received, 0, group=group)
    assert _value(received) == [5, 5]
    given, taken = torch.ones(1) * rank, torch.zeros(1)
    for _ in range(20):  # Everybody sends first.
        functions.isend(given, 1 - rank, group=group)
        functions.irecv(taken, 1 - rank, group=group)
        given.add_(2)
    assert [_value(taken, gpus=n) for n in range(2)] == [[39], [38]]


def _num_kept() -> int:
    from monarch.tensors.worker.collectives import late_sends  # That of the worker's thread.

    return len(late_sends)


@pytest.mark.long
def test_copies_of_what_was_sent_are_let_go(mesh: Any) -> None:
    first, second = mesh.slice(gpus=0), mesh.slice(gpus=1)
    with first.activate():
        x = torch.ones(3)
    for _ in range(60):
        moved = x.to_mesh(second)
    assert _value(moved) == [1, 1, 1]
    with first.activate():
        assert remote(_num_kept).call_one().get() <= 16


def test_a_recording_that_failed_half_way_leaves_nothing_for_the_next(mesh: Any) -> None:
    other = Stream("other")

    def refuse(x: Any, y: Any) -> Any:
        if float(y) < 0:
            raise ValueError("below zero")
        return x.clone()

    refuses = remote(refuse, propagate=_copy)

    @record(verify=False)
    def step(x: Any, y: Any) -> Any:
        lent, borrow = other.borrow(x)
        refuses(x, y)
        with other.activate():
            found = lent + 1
        borrow.drop()
        return found

    good, bad = torch.ones(1), -torch.ones(1)
    assert _value(step(good, good)) == [2]
    with pytest.raises(RemoteException, match="below zero"):
        _value(step(good * 5, bad))
    assert _value(step(good * 7, good)) == [8]


class Giver(Actor):
    @endpoint(propagate=lambda: torch.zeros(1))
    def give(self) -> Any:
        return torch.ones(1)


@pytest.mark.long
def test_a_recording_refuses_actors_that_it_would_not_call(procs: ProcMesh) -> None:
    actors = procs.spawn("giver", Giver)
    step = record(lambda x: x + actors.give.rref(), verify=False)
    with procs.activate():
        with pytest.raises(NotImplementedError, match="when it is replayed"):
            step(torch.ones(1))
        assert _value(actors.give.rref()) == [1]


def test_a_mesh_ends_and_begins_again() -> None:
    procs = this_host().spawn_procs({"gpus": 2}, preload=WITH_TORCH)
    for number in range(3):
        with procs.activate():
            with Stream("side").activate():
                beside = torch.ones(1).reduce("gpus")
            total = (torch.ones(1) * number).reduce("gpus")
            assert (_value(total), _value(beside)) == ([2 * number], [2])
        procs._device_mesh.exit()
    with pytest.raises(RuntimeError, match="was shut down"):
        total + 1
    del total, beside  # Nobody is told any more.
    procs.stop().get()


@pytest.mark.usefixtures("faults")
def test_a_fetch_that_waits_for_a_worker_that_dies_is_told(procs: ProcMesh) -> None:
    """And so is who borrows, and who comes later. The procs of another mesh are not concerned."""
    others = this_host().spawn_procs({"gpus": 2}, preload=WITH_TORCH)
    other, dies = Stream("other"), remote("os._exit", propagate="inspect")
    with procs.activate():
        kept = torch.ones(1)
    with others.activate():
        x = torch.ones(1)
        with pytest.raises(TypeError, match=r"WRONG_MESH(.|\n)*of other procs(.|\n)*fetch_shard"):
            torch.add(kept, x)
        lent, borrow = other.borrow(x)
        with other.activate():
            y = lent + 1
            with others._device_mesh.slice(gpus=1).activate():
                dies(9)
            later = fetch_shard(y)
        with pytest.raises(SupervisionError):
            later.result(timeout=_SECONDS)

        def go_on() -> Any:
            borrow.drop()
            return _value(x.add_(1))

        with pytest.raises(SupervisionError):
            go_on()
    others.stop().get()
    assert _value(kept + 1) == [2]


@pytest.mark.long
@pytest.mark.usefixtures("faults")
def test_a_stream_that_ends_by_a_fault_does_not_keep_others_waiting() -> None:
    procs = this_host().spawn_procs({"gpus": 1}, preload=WITH_TORCH)
    other = Stream("other")

    def leave(x: Any) -> None:
        raise SystemExit("gone")

    leaves = remote(leave, propagate="inspect")
    with procs.activate():
        x = torch.ones(1)
        lent, borrow = other.borrow(x)
        with other.activate():
            leaves(lent)
        borrow.drop()  # The main stream waits for the other one here.
        with pytest.raises(SupervisionError):
            _value(x + 1)
    procs.stop().get()
