"""Smaller parts of Monarch's public surface for tensors: classes that a controller speaks for, the
states of generators, a local mesh, the worker's device."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from monarch import RemoteException, Stream, call_on_shard_and_fetch, inspect, no_mesh, remote
from monarch.opaque_module import OpaqueModule
from monarch.opaque_object import OpaqueObject, opaque_method
from monarch.python_local_mesh import python_local_mesh
from monarch.random import State, get_state, new_state, set_state
from monarch.remote_class import ControllerRemoteClass, WorkerRemoteClass
from monarch.tensors.worker.worker import staying_on, watch_set_device
from tests.support import wait_for


class Counter(ControllerRemoteClass):
    def __init__(self, start: int) -> None:
        super().__init__(f"{__name__}.WorkerCounter", start)

    @ControllerRemoteClass.remote_method
    def add(self, number: int) -> None:
        raise AssertionError("it runs on the workers")

    @ControllerRemoteClass.remote_method
    def no_such(self) -> None: ...


class WorkerCounter(WorkerRemoteClass):
    def __init__(self, start: int) -> None:
        if start < 0:
            raise ValueError("it starts at 0 or more")
        self.total = start

    def add(self, number: Any) -> None:
        self.total += int(number)


def _totals() -> list[int]:
    return sorted(one.total for one in WorkerRemoteClass._objects.values())


def _all_totals() -> list[list[int]]:
    return remote("tests.tensors.test_tensors_surface._totals").call().get().values()


@pytest.mark.long
def test_a_class_whose_methods_run_on_the_workers(mesh: Any) -> None:
    counter, other = Counter(1), Counter(start=10)
    assert counter.mesh is mesh
    assert counter.add(5) is None
    other.add(mesh.rank("gpus"))
    assert _all_totals() == [[6, 10], [6, 11]]
    with mesh.slice(gpus=1).activate():
        counter.add(100)  # On the mesh that is active.
    assert _all_totals() == [[6, 10], [11, 106]]
    del counter
    assert _all_totals() == [[10], [11]]


@pytest.mark.long
def test_a_class_without_an_active_mesh_runs_where_it_is(mesh: Any) -> None:
    counter = Counter(0)
    with no_mesh.activate():
        counter.add(2)
    assert _all_totals() == [[2], [2]]
    del counter
    with no_mesh.activate(), pytest.raises(TypeError, match="an active device mesh"):
        Counter(1)


def test_a_class_that_could_not_be_made_says_so_at_each_call(mesh: Any) -> None:
    counter = Counter(-1)
    with pytest.raises(RemoteException, match="it starts at 0 or more"):
        inspect(counter._key)
    counter.add(1)
    with pytest.raises(RemoteException, match="its __init__ has failed here"):
        mesh.client.raise_unasked()
    good = Counter(1)
    good.no_such()
    with pytest.raises(RemoteException, match=r"no attribute 'no_such'"):
        mesh.client.raise_unasked()


def test_the_states_of_generators(mesh: Any) -> None:
    state = get_state()
    assert isinstance(state, State)
    assert state._fields == ("cpu", "cuda")
    first = [inspect(torch.rand(3), gpus=n).tolist() for n in range(2)]
    set_state(state)
    drawn = torch.rand(3)
    assert inspect(drawn, gpus=0).tolist() == first[0]
    seeded = new_state(mesh.rank("gpus"))
    assert [tuple(one.shape) for one in seeded] == [tuple(one.shape) for one in state]
    set_state(seeded)
    drawn = torch.rand(3)
    with no_mesh.activate():
        wanted = torch.rand(3, generator=torch.Generator().manual_seed(1)).tolist()
    assert inspect(drawn, gpus=1).tolist() == wanted


class _Maker:
    def __init__(self, num: int) -> None:
        self.num = num

    def make(self) -> Any:
        return torch.ones(self.num)


class _Made(OpaqueObject):
    def __init__(self, num: int) -> None:
        super().__init__(_Maker, num)
        self.num = num
        self.lock: Any = None

    @opaque_method
    def make(self) -> Any:
        return torch.empty(self.num)


def test_what_a_method_returns_may_follow_from_its_object(mesh: Any) -> None:
    small, large = _Made(2), _Made(3)
    for _ in range(2):
        assert [tuple(one.make().shape) for one in (small, large)] == [(2,), (3,)]
    small.num = 7  # A rule is believed.
    assert small.make().shape == (7,)
    large.lock = threading.Lock()  # It cannot be compared: the rule is asked each time.
    assert large.make().shape == (3,)
    large.num = 4
    assert large.make().shape == (4,)


def test_modules_have_parameters_of_their_own(mesh: Any) -> None:
    modules = [OpaqueModule("torch.nn.Linear", 2, out) for out in (1, 3)]
    for module, out in zip(modules, (1, 3), strict=True):
        weight, bias = module.parameters()
        assert (weight.shape, bias.shape) == ((out, 2), (out,))
        assert inspect(weight.detach()).shape == (out, 2)


@pytest.mark.long
def test_a_local_mesh_ends_with_its_procs() -> None:
    mesh = python_local_mesh(gpus=2)
    assert mesh.names == ("host", "gpu")
    with mesh.activate():
        pid = call_on_shard_and_fetch(remote("os.getpid")).get()
        assert inspect(mesh.rank("gpu"), host=0, gpu=1).item() == 1
    mesh.exit()

    def has_ended() -> bool:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                return stat.read().split()[2] == "Z"
        except OSError:
            return True

    wait_for(has_ended)


def test_a_worker_in_all_its_streams_keeps_its_device(mesh: Any) -> None:
    moves = remote(
        "monarch.worker._testing_function.set_device_udf_worker",
        propagate=lambda device: torch.zeros(1),
    )
    with pytest.raises(RemoteException, match="available to monarch worker"):
        inspect(moves(1))
    with Stream("beside").activate():
        moved = moves(1)
        with pytest.raises(RemoteException, match="available to monarch worker"):
            inspect(moved)


def test_only_the_worker_keeps_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    watch_set_device()
    watch_set_device()
    with staying_on(1):
        torch.cuda.set_device(1)
        torch.cuda.set_device("cuda:1")
        with pytest.raises(ValueError, match=r"only devices \[1\] are available to monarch worker"):
            torch.cuda.set_device(0)
        with pytest.raises(ValueError, match="available to monarch worker"):
            torch.cuda.set_device(torch.device("cuda", 2))
        other = threading.Thread(target=torch.cuda.set_device, args=(3,))  # An actor's.
        other.start()
        other.join()
    torch.cuda.set_device(4)
    assert chosen == [1, "cuda:1", 3, 4]
