"""Objects on workers, autograd functions, gradients one by one, random numbers, deaths, old
names."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import manual_seed, nn

from monarch import OpaqueRef, fetch_shard, grad_function, grad_generator, inspect, no_mesh, remote
from monarch.actor import SupervisionError, this_host
from monarch.builtins.log import log_remote, set_logging_level_remote
from monarch.builtins.random import (
    get_rng_state_remote,
    initial_seed_remote,
    random_seed_remote,
    set_manual_seed_remote,
    set_rng_state_remote,
)
from monarch.cached_remote_function import remote_autograd_function
from monarch.gradient_generator import GradientGenerator, gradient_execution_order
from monarch.opaque_module import OpaqueModule
from monarch.opaque_object import OpaqueObject, opaque_method
from monarch.tensors.worker.packing import packed, unpacked
from tests.support import wait_for
from tests.tensors.conftest import WITH_TORCH


def _hold(number: int) -> OpaqueRef:
    return OpaqueRef({"number": number})


def _read(ref: OpaqueRef) -> torch.Tensor:
    return torch.tensor(ref.value["number"])


hold = remote(_hold, propagate=lambda number: OpaqueRef(None))
read = remote(_read, propagate=lambda ref: torch.tensor(0))


@remote
def add_and_flatten(ref: OpaqueRef, x: torch.Tensor) -> torch.Tensor:
    x.add_(ref.value["number"])
    return x.view(-1)


class Counter:
    """Of the workers."""

    def __init__(self, start: int) -> None:
        self.number = start

    def add(self, x: Any) -> Any:
        self.number += 1
        return x + self.number


class RemoteCounter(OpaqueObject):
    @opaque_method
    def add(self, x: Any) -> Any:
        return x.clone()


@pytest.mark.long
def test_objects_of_the_workers(mesh: Any) -> None:
    counter = RemoteCounter(Counter, 10)
    assert inspect(counter.add(torch.ones(2))).tolist() == [12, 12]
    before = mesh.client.cache.num_misses
    assert inspect(counter.add(torch.ones(2))).tolist() == [13, 13]
    assert mesh.client.cache.num_misses == before
    same = RemoteCounter(counter)  # A reference to the object that is there.
    assert same.call_method_on_shard_and_fetch("add", torch.ones(1)).get().tolist() == [14]
    number = remote(lambda ref: torch.tensor(ref.value.number), propagate=lambda r: torch.tensor(0))
    assert [inspect(number(same), gpus=n).item() for n in range(2)] == [13, 12]


def test_a_function_that_runs_on_a_shard_first_gets_its_tensors_after_an_object(mesh: Any) -> None:
    x = torch.zeros(2, 2)
    flat = add_and_flatten(hold(3), x)
    flat.add_(1)
    assert inspect(x).tolist() == [[4, 4], [4, 4]]


@pytest.mark.long
def test_modules_of_the_workers_have_gradients(mesh: Any) -> None:
    module = OpaqueModule("torch.nn.Linear", 3, 2)
    weight, bias = module.parameters()
    with torch.no_grad():
        weight.fill_(2.0)
        bias.fill_(1.0)
    x = torch.ones(4, 3, requires_grad=True)
    misses = []
    for _ in range(3):
        x.grad = weight.grad = None
        before = mesh.client.cache.num_misses
        y = module(input=x, propagator=lambda self, input: input.new_empty(4, 2))
        y.sum().backward()
        misses.append(mesh.client.cache.num_misses - before)
    assert misses[2] == 0  # The rule is written anew, and the same.
    assert inspect(y.detach()).tolist() == [[7, 7]] * 4
    assert inspect(weight.grad).tolist() == [[4, 4, 4]] * 2
    assert inspect(x.grad).tolist() == [[4, 4, 4]] * 4
    for parameter in (weight, bias):
        parameter.requires_grad_(False)
    shown = module(x.detach(), propagator=lambda self, x: x.new_empty(4, 2))
    assert inspect(shown).tolist() == [[7, 7]] * 4
    shown = module.call_method("forward", lambda self, x: x.new_empty(4, 2), x.detach())
    assert inspect(shown).tolist() == [[7, 7]] * 4


@pytest.mark.long
def test_an_autograd_function_on_the_workers(mesh: Any) -> None:
    class Triple(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, k: float) -> Any:
            ctx.save_for_backward(x)
            ctx.k = k
            return x * x * k

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grad * 2 * x * ctx.k, None

    x = torch.full((2,), 5.0).requires_grad_()
    y = remote_autograd_function(Triple).apply(x, 3.0)
    y.sum().backward()
    assert inspect(y.detach()).tolist() == [75, 75]
    assert inspect(x.grad).tolist() == [30, 30]


def _network(x: Any) -> tuple[Any, list[Any]]:
    a = (x * 2).requires_grad_()
    b = torch.relu(a @ a.t())
    c = b.sum(0) * x[:, 0]
    return (c * c).mean(), [c, a, x, b]


@pytest.mark.long_but(1)
@pytest.mark.parametrize("is_local", [True, False])
def test_gradients_one_by_one_equal_backward(mesh: Any, is_local: bool) -> None:
    with no_mesh.activate():
        own = torch.arange(6.0).view(3, 2).requires_grad_()
        loss, asked = _network(own)
        wanted = torch.autograd.grad(loss, asked, retain_graph=True)
        if is_local:
            found = list(grad_generator(loss, asked))
            for a, b in zip(found, wanted, strict=True):
                torch.testing.assert_close(a, b)
            (seeded,) = GradientGenerator([loss], [own], [torch.tensor(2.0)])
            torch.testing.assert_close(seeded, wanted[2] * 2)
            assert gradient_execution_order([loss], [own, asked[0]]) == [1, 0]
            return
    x = torch.arange(6.0).view(3, 2).requires_grad_()
    loss, asked = _network(x)
    values = inspect(list(grad_generator(loss, asked)))
    with no_mesh.activate():
        for a, b in zip(values, wanted, strict=True):
            torch.testing.assert_close(a, b)


def test_a_function_with_its_own_backward(mesh: Any) -> None:
    @grad_function
    def double(x: Any, y: Any) -> Any:
        return x * 2 + y, lambda grad: (grad * 2, grad)

    x, y = torch.ones(2).requires_grad_(), torch.ones(2).requires_grad_()
    double(x, y).sum().backward()
    assert inspect([x.grad, y.grad])[0].tolist() == [2, 2]


@pytest.mark.long
def test_seeds_and_states(mesh: Any) -> None:
    random = import_module("monarch.random")

    set_manual_seed_remote(5)
    assert inspect(initial_seed_remote()).tolist() == [5]
    state = get_rng_state_remote()
    first = inspect(torch.rand(3)).tolist()
    set_rng_state_remote(state)
    assert inspect(torch.rand(3)).tolist() == first
    set_manual_seed_remote(5, mesh.rank("gpus"))
    both = [inspect(initial_seed_remote(), gpus=n).item() for n in range(2)]
    assert both == [5, 4]
    assert inspect(random_seed_remote()).shape == (1,)
    random.set_state(random.new_state(mesh.rank("gpus")))
    values = torch.rand(1)
    assert inspect(values, gpus=0).tolist() != inspect(values, gpus=1).tolist()


def test_torchs_own_seeds_reach_the_mesh(mesh: Any) -> None:
    """Also by a name that was imported before; in a slice, the workers of the slice alone."""

    def drawn() -> list[list[float]]:
        values = torch.rand(3)
        return [inspect(values, gpus=n).tolist() for n in range(2)]

    with no_mesh.activate():
        torch.manual_seed(3)
        expected = torch.rand(3).tolist()
    manual_seed(3)
    assert drawn() == [expected, expected]
    state = torch.get_rng_state()
    later = drawn()
    torch.set_rng_state(state)
    assert drawn() == later
    torch.set_rng_state(state)
    with torch.random.fork_rng():
        drawn()
    assert drawn() == later
    with mesh.slice(gpus=1).activate():
        torch.manual_seed(3)
    of_both = drawn()
    assert of_both[1] == expected
    assert of_both[0] != expected
    torch.seed()
    assert drawn()[0] != drawn()[1]
    with no_mesh.activate():
        torch.manual_seed(3)
        local = torch.get_rng_state()
    assert drawn()[0] != expected
    torch.set_rng_state(local)
    assert drawn() == [expected, expected]


def test_modules_have_the_weights_of_a_plain_script(mesh: Any) -> None:
    with no_mesh.activate():
        torch.manual_seed(0)
        plain = nn.Linear(4, 4)
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    for rank in range(2):
        assert inspect(layer.weight.detach(), gpus=rank).tolist() == plain.weight.tolist()


def test_checkpointed_dropout_draws_the_same_again(mesh: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(1)
    x = torch.ones(64, requires_grad=True)
    y = checkpoint(lambda x: nn.functional.dropout(x, 0.5), x, use_reentrant=False)
    y.sum().backward()
    assert inspect(y.detach()).tolist() == inspect(x.grad).tolist()


def test_logging_on_the_workers(mesh: Any) -> None:
    set_logging_level_remote(logging.ERROR)
    log_remote("%s, on all workers", "hello", level=logging.WARNING)
    mesh.client.settle()


def test_worked_without_special_cases(mesh: Any) -> None:
    x = torch.linspace(-1, 1, 16).view(2, 8)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    out = layer(x.view(1, 2, 8))
    out.sum().backward()
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    assert set(layer.state_dict())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x.t()).dtype == torch.bfloat16
    assert torch.func.grad(lambda v: (v * v).sum())(x).shape == x.shape
    assert torch.vmap(lambda v: v * 2)(x).shape == x.shape
    checked = torch.utils.checkpoint.checkpoint(torch.relu, x.requires_grad_(), use_reentrant=False)
    checked.sum().backward()
    with no_mesh.activate():
        assert inspect(x.grad).shape == (2, 8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor(3),
        lambda: torch.tensor([True, False]),
        lambda: torch.arange(6).view(2, 3),
        lambda: torch.ones(3, dtype=torch.bfloat16),
        lambda: torch.tensor([1 + 2j]),
        lambda: torch.tensor([1 + 2j]).conj(),
        lambda: torch.arange(6.0).view(2, 3).t(),
        lambda: torch.empty(0, 2),
        lambda: torch.ones(5000),
    ],
)
def test_values_arrive_as_they_are(make: Any) -> None:
    value = make()
    found = unpacked(pickle.loads(pickle.dumps(packed(value))))
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    assert torch.equal(found, value)
    found.fill_(0)  # It is the caller's.
    assert found.stride() == value.stride()


@pytest.mark.long
def test_unasked_failures_are_raised_at_the_end() -> None:
    procs = this_host().spawn_procs({"gpus": 1})
    mesh = procs._device_mesh
    with mesh.activate():
        remote(lambda x: x.no_such(), propagate=lambda x: x)(torch.ones(1))
    with pytest.raises(Exception, match="no_such"):
        mesh.exit()
    with pytest.raises(RuntimeError, match="was shut down"):
        mesh.activate()
    procs.stop().get()


@pytest.mark.usefixtures("faults")
def test_the_death_of_a_worker_in_a_collective_is_a_supervision_error() -> None:
    procs = this_host().spawn_procs({"gpus": 2}, preload=WITH_TORCH)
    with procs.activate():
        x = torch.ones(2)
        assert inspect(x.reduce("gpus")).tolist() == [2, 2]
        dies = remote("os._exit", propagate="inspect")
        with procs._device_mesh.slice(gpus=1).activate():
            dies(9)
        total = x.reduce("gpus")  # The other is in it, and waits for the dead one.
        with pytest.raises(SupervisionError):
            fetch_shard(total).result(timeout=60)

        def refuses() -> bool:
            try:
                inspect(x + 1)
            except SupervisionError:
                return True
            return False

        wait_for(refuses)
    procs.stop().get()
    again = this_host().spawn_procs({"gpus": 2}, preload=WITH_TORCH)
    with again.activate():
        assert inspect(torch.ones(1).reduce("gpus")).item() == 2
    again.stop().get()


def test_the_package_of_actors_needs_no_torch() -> None:
    code = "import sys, monarch, monarch.actor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.long
def test_tensors_for_tests_of_programs() -> None:
    from monarch._testing import TestingContext
    from monarch.common.tree import flatten, flattener

    with TestingContext() as testing, testing.local_device_mesh(1, 2) as mesh:
        assert mesh.names == ("host", "gpu")
        assert inspect(mesh.rank("gpu"), host=0, gpu=1).item() == 1
    leaves, unflatten = flatten([1, "a", 2], lambda leaf: isinstance(leaf, int))
    assert (leaves, unflatten([3, 4])) == ([1, 2], [3, "a", 4])
    assert flattener([1, "a"], lambda leaf: isinstance(leaf, str))([5, "b"]) == ["b"]
