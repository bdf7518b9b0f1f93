"""Training on four procs: equal to one process. And random programs: equal to plain torch."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from monarch import RemoteException, Stream, grad_generator, inspect, no_mesh, remote
from monarch import compile as record
from monarch.actor import ProcMesh, this_host
from monarch.config import configured

_WORLD = 4
_FEATURES = 8


def _model() -> Any:
    return nn.Sequential(nn.Linear(_FEATURES, 16), nn.ReLU(), nn.Linear(16, _FEATURES))


def _data(rank: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(100 + rank)
    return (
        torch.randn(3, _FEATURES, generator=generator),
        torch.randn(3, _FEATURES, generator=generator),
    )


load = remote(
    lambda rank: _data(int(rank)),
    propagate=lambda rank: (torch.empty(3, _FEATURES), torch.empty(3, _FEATURES)),
)
seed = remote(lambda number: torch.manual_seed(number) and None, propagate="inspect")

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "adamw, one by one": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "adamw, fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
}


def _alone(make: Callable[[Any], Any], steps: int) -> tuple[list[float], list[Any]]:
    torch.manual_seed(0)
    model = _model()
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    inputs = [torch.cat(parts) for parts in zip(*map(_data, range(_WORLD)), strict=True)]
    losses = []
    for _ in range(steps):
        loss = F.mse_loss(model(inputs[0]), inputs[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses, [parameter.detach() for parameter in model.parameters()]


@pytest.mark.long
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_data_parallel_steps_equal_one_process(four: ProcMesh, name: str) -> None:
    losses, parameters = _alone(OPTIMIZERS[name], 6)
    mesh = four.flatten("dp")._device_mesh
    with mesh.activate():
        seed(0)
        model = _model()
        x, y = load(mesh.rank("dp"))
        optimizer = OPTIMIZERS[name](model.parameters())
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        found, misses = [], []
        for _ in range(6):
            before = mesh.client.cache.num_misses
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                parameter.grad.reduce_("dp", "avg")
            optimizer.step()
            schedule.step()
            found.append(loss.detach().reduce("dp", "avg"))
            misses.append(mesh.client.cache.num_misses - before)
    assert misses[2:] == [0] * 4
    values = [loss.item() for loss in inspect(found)]
    assert values == pytest.approx(losses, abs=1e-6)
    for own, wanted in zip(inspect(list(model.parameters()), dp=3), parameters, strict=True):
        torch.testing.assert_close(own, wanted, atol=1e-6, rtol=0)


@pytest.mark.long
def test_a_compiled_step_equals_one_process(four: ProcMesh) -> None:
    losses, parameters = _alone(lambda p: torch.optim.SGD(p, 0.1), 5)
    rates = [0.1 * (1 + torch.cos(torch.tensor(n * torch.pi / 10)).item()) / 2 for n in range(5)]
    mesh = four.flatten("dp")._device_mesh
    with mesh.activate():
        seed(0)
        model = _model()
        x, y = load(mesh.rank("dp"))
        rate = torch.zeros(())

        @record
        def step(x: Any, y: Any) -> Any:
            loss = F.mse_loss(model(x), y)
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad.reduce_("dp", "avg") * rate)
                    parameter.grad = None
            return loss.detach().reduce("dp", "avg")

        found = []
        for number in rates:
            rate.fill_(number)
            found.append(step(x, y))
    assert [loss.item() for loss in inspect(found)] == pytest.approx(losses, abs=1e-6)
    for own, wanted in zip(inspect(list(model.parameters()), dp=2), parameters, strict=True):
        torch.testing.assert_close(own, wanted, atol=1e-6, rtol=0)


def test_a_compiled_step_with_an_optimizer_equals_the_step_as_it_is(four: ProcMesh) -> None:
    mesh = four.flatten("dp")._device_mesh

    def losses(wrap: Callable[..., Any]) -> list[Any]:
        seed(0)
        model = _model()
        optimizer = OPTIMIZERS["adamw, fused"](model.parameters())

        def step(x: Any, y: Any) -> Any:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        found = [step(x, y)]  # The optimizer makes its state in it.
        wrapped = wrap(step)
        return found + [wrapped(x, y) for _ in range(4)]

    with mesh.activate():
        x, y = load(mesh.rank("dp"))
        as_it_is, compiled = losses(lambda step: step), losses(record)
    values = [loss.item() for loss in inspect(as_it_is, dp=1)]
    assert [loss.item() for loss in inspect(compiled, dp=1)] == values
    assert len(set(values)) == 5


class _Copy(torch.autograd.Function):
    """To all ranks; the gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad.reduce("tp", "sum")


class _Sum(torch.autograd.Function):
    """Of all ranks; the gradient is everybody's."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.reduce("tp", "sum")

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


def test_tensor_parallel_steps_equal_one_process(four: ProcMesh) -> None:
    torch.manual_seed(1)
    wide, narrow = torch.randn(16, _FEATURES) * 0.3, torch.randn(_FEATURES, 16) * 0.3
    x, y = _data(0)

    def shards(rank: Any) -> Any:
        rows = slice(int(rank) * 4, int(rank) * 4 + 4)
        return wide[rows].clone(), narrow[:, rows].clone(), x.clone(), y.clone()

    rule = lambda rank: (  # noqa: E731 - as users write them
        torch.empty(4, _FEATURES), torch.empty(_FEATURES, 4), torch.empty(3, _FEATURES),
        torch.empty(3, _FEATURES),
    )  # fmt: skip
    mesh = four.flatten("tp")._device_mesh
    with mesh.activate():
        a, b, own_x, own_y = remote(shards, propagate=rule)(mesh.rank("tp"))
        weights = [a.requires_grad_(), b.requires_grad_()]
        optimizer = torch.optim.AdamW(weights, 0.01)
        found = []
        for _ in range(4):
            hidden = torch.relu(_Copy.apply(own_x) @ weights[0].T)
            loss = F.mse_loss(_Sum.apply(hidden @ weights[1].T), own_y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
    locals_ = [wide.clone().requires_grad_(), narrow.clone().requires_grad_()]
    optimizer = torch.optim.AdamW(locals_, 0.01)
    losses = []
    for _ in range(4):
        loss = F.mse_loss(torch.relu(x @ locals_[0].T) @ locals_[1].T, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert [loss.item() for loss in inspect(found)] == pytest.approx(losses, abs=1e-6)
    torch.testing.assert_close(
        inspect(weights[0], tp=3), locals_[0].detach()[12:], atol=1e-6, rtol=0
    )


def test_a_pipeline_of_two_stages_equals_one_process(four: ProcMesh) -> None:
    losses, _ = _alone(lambda p: torch.optim.SGD(p, 0.0), 1)
    torch.manual_seed(0)
    whole = _model()
    stages = [four.rename(hosts="pp", gpus="dp")._device_mesh.slice(pp=n) for n in range(2)]
    rows = [_data(0), _data(1)]
    for parameter in whole.parameters():
        parameter.requires_grad_()
    with stages[0].activate():
        seed(0)
        first = nn.Sequential(*_model()[:2])
        x, y = load(stages[0].rank("dp"))
    with stages[1].activate():
        seed(0)
        second = _model()[2]
    out = first(x)
    moved = out.detach().to_mesh(stages[1]).requires_grad_()
    with torch.no_grad():
        target = y.to_mesh(stages[1])
    loss = F.mse_loss(second(moved), target)
    parameters = list(second.parameters())
    *grads, back = grad_generator(loss, [*parameters, moved])
    (grad,) = grad_generator(out, [first[0].weight], [back.to_mesh(stages[0])])
    for rank, (own_x, own_y) in enumerate(rows):
        wanted = F.mse_loss(whole(own_x), own_y)
        wanted_grads = torch.autograd.grad(wanted, list(whole.parameters()))
        assert inspect(loss.detach(), dp=rank).item() == pytest.approx(wanted.item(), abs=1e-6)
        torch.testing.assert_close(inspect(grad, dp=rank), wanted_grads[0], atol=1e-6, rtol=0)
        torch.testing.assert_close(inspect(grads[0], dp=rank), wanted_grads[2], atol=1e-6, rtol=0)
    assert losses


# Collectives


@pytest.mark.parametrize("dims", ["gpus", "hosts", ("hosts", "gpus"), ()], ids=str)
@pytest.mark.parametrize("reduction", ["sum", "avg", "product", "min", "max"])
def test_reductions(four: ProcMesh, reduction: str, dims: Any) -> None:
    mesh = four._device_mesh
    names = mesh.names if dims == () else (dims,) if isinstance(dims, str) else dims
    with four.activate():
        x = (mesh.rank(("hosts", "gpus")) + 1).float().view(1)
        result = x.reduce(dims, reduction)
        x.reduce_(dims, reduction)
    at = {"hosts": 1, "gpus": 0}
    members = [
        1.0 + 2 * h + g
        for h in range(2)
        for g in range(2)
        if all(n in names or at[n] == c for n, c in (("hosts", h), ("gpus", g)))
    ]
    values = torch.tensor(members)
    wanted = {
        "sum": values.sum(), "avg": values.mean(), "product": values.prod(),
        "min": values.min(), "max": values.max(),
    }[reduction]  # fmt: skip
    assert inspect(result, at).item() == inspect(x, at).item() == pytest.approx(wanted.item())


def test_stacking_and_scattering(four: ProcMesh) -> None:
    with four.activate():
        mesh = four._device_mesh
        rank = mesh.rank("gpus")
        flags = torch.tensor([1, 2]) * (rank + 1)  # 1 2 and 2 4
        assert inspect(flags.reduce("gpus", "stack")).tolist() == [[1, 2], [2, 4]]
        scattered = flags.reduce("gpus", "sum", scatter=True)
        assert [inspect(scattered, hosts=0, gpus=n).item() for n in range(2)] == [3, 6]
        crossed = flags.reduce("gpus", "stack", scatter=True)
        assert [inspect(crossed, hosts=1, gpus=n).tolist() for n in range(2)] == [[1, 2], [2, 4]]
        assert inspect(flags.reduce("gpus", "bor"), hosts=0, gpus=0).tolist() == [3, 6]
        out = torch.zeros(2, dtype=torch.int64)
        same = flags.reduce("gpus", "max", out=out)
        same.add_(1)
        assert inspect(out).tolist() == [3, 5]


def test_reductions_that_cannot_be(four: ProcMesh) -> None:
    with four.activate():
        x = torch.ones(2)
        with pytest.raises(KeyError, match="dim x not found in"):
            x.reduce("x")
        with pytest.raises(ValueError, match="reducing the same dimension twice"):
            x.reduce(("gpus", "gpus"))
        with pytest.raises(ValueError, match="not valid for multiple dimensions"):
            x.reduce((), "stack")
        with pytest.raises(ValueError, match="not supported, reductions are"):
            x.reduce("gpus", "mean")
        with pytest.raises(TypeError, match="must match the size"):
            torch.ones(3).reduce("gpus", scatter=True)
        with pytest.raises(ValueError, match="not valid for in-place"):
            x.reduce_("gpus", "stack")
        with pytest.raises(ValueError, match=r"given output shape.*incorrect"):
            x.reduce("gpus", out=torch.ones(3))
        with pytest.raises(TypeError, match="REQUIRES_GRAD"):
            torch.ones(2, requires_grad=True).reduce("gpus")
        with pytest.raises(NotImplementedError):
            x.reduce("gpus", mesh=four)


def test_copies_to_other_meshes(four: ProcMesh) -> None:
    mesh = four._device_mesh
    top, bottom = mesh.slice(hosts=0), mesh.slice(hosts=1)
    with top.activate():
        x = top.rank("gpus") + 10
        y = x.to_mesh(bottom)
        x.add_(100)  # It was a copy.
        one = x.slice_mesh(gpus=1).to_mesh(mesh.slice(hosts=0, gpus=0))
        with pytest.warns(UserWarning, match="broadcast"):
            everywhere = x.to_mesh(mesh)
        with pytest.raises(ValueError, match="destination mesh does not have dimensions"):
            x.to_mesh(mesh.slice(gpus=0))
        with pytest.raises(ValueError, match="has a different length than the source tensor"):
            x.to_mesh(mesh.flatten("gpus"))
        later = x.to_mesh(bottom, stream=Stream("arrivals"))
    assert [inspect(y, gpus=n).item() for n in range(2)] == [10, 11]
    assert inspect(one).item() == 111
    assert [inspect(everywhere, hosts=1, gpus=n).item() for n in range(2)] == [110, 111]
    assert later.stream.name == "arrivals"
    assert inspect(later, gpus=1).item() == 111


# Random programs

_KINDS = [
    "add", "scalar", "mm", "view", "t", "slice", "inplace", "fill", "sum", "cat", "std", "cast",
    "where", "unsqueeze", "grad", "drop", "foreach", "mean",
]  # fmt: skip


def _pick(pool: list[Any], u: float, shape: Any = None) -> Any:
    fit = [t for t in pool if shape is None or t.shape == shape]
    return fit[int(u * len(fit))]


def _step(pool: list[Any], kind: str, u: float, v: float, number: Any) -> None:
    a = _pick(pool, u)
    b = _pick(pool, v, a.shape)
    if kind == "add":
        pool.append(a + b)
    elif kind == "scalar":
        pool.append(a * number + number)
    elif kind == "mm" and a.dim() == 2:
        pool.append(torch.tanh(a @ a.transpose(-1, -2)))
    elif kind == "view" and a.dim() == 2:
        pool.append(a[int(v * a.shape[0])])
    elif kind == "t" and a.dim() == 2:
        pool.append(a.t())
    elif kind == "slice":
        pool.append(a[..., : max(1, a.shape[-1] - 1)])
    elif kind == "inplace":
        a.mul_(0.5).add_(b.clone() if v > 0.5 else number)
    elif kind == "fill":
        a[..., 0] = number
    elif kind == "sum":
        pool.append(a.sum(-1, keepdim=True).expand(a.shape).clone())
    elif kind == "cat":
        pool.append(torch.cat([a, b], -1)[..., : a.shape[-1]])
    elif kind == "std":
        x, y = torch.std_mean(a.reshape(-1), dim=0, correction=0)
        pool.append(a + x * y)
    elif kind == "cast":
        pool.append(a.to(torch.float64).to(torch.float32))
    elif kind == "where":
        pool.append(torch.where(a > b, a, b))
    elif kind == "unsqueeze":
        c = a.clone()
        c.unsqueeze_(0)
        pool.append(c.squeeze(0))
    elif kind == "grad":
        x = a.detach().clone().requires_grad_()
        (torch.relu(x) * b.detach()).sum().backward()
        pool.append(x.grad)
    elif kind == "drop" and len(pool) > 6:
        pool.pop(int(v * len(pool)) % (len(pool) - 4) + 3)
    elif kind == "foreach":
        torch._foreach_mul_([a], 1.5)
    elif kind == "mean":
        # The same on all ranks, so that the average is the value itself.
        pool.append(a.reduce("dp", "avg") if hasattr(a, "mesh") else a.clone())


def _start() -> list[Any]:
    return [
        torch.arange(12.0).reshape(3, 4) / 12,
        torch.ones(3, 4),
        torch.arange(9.0).reshape(3, 3) / 9,
    ]


fails = remote(lambda x, rank: x.no_such() if int(rank) == 1 else x, propagate=lambda x, r: x + 1)


def _check_program(mesh: Any, number: int) -> None:
    chance = random.Random(number)
    numbers = [1, 1.0, True, 2, 0.5, -3]
    steps = [
        (chance.choice(_KINDS), chance.random(), chance.random(), chance.choice(numbers))
        for _ in range(30)
    ]
    fails_at = chance.randrange(30) if chance.random() < 0.3 else None
    with no_mesh.activate():
        wanted = _start()
        for step in steps:
            _step(wanted, *step)
    with mesh.activate():
        found = _start()
        spoiled = None
        for n, step in enumerate(steps):
            if n == fails_at:
                spoiled = fails(found[0], mesh.rank("dp")) + 1
            _step(found, *step)
    values = inspect(found, dp=number % len(mesh))
    for own, local in zip(values, wanted, strict=True):
        torch.testing.assert_close(own, local, atol=1e-4, rtol=1e-4, equal_nan=True)
    if spoiled is not None:
        with pytest.raises(RemoteException, match="no_such"):
            inspect(spoiled)


@pytest.mark.long
def test_random_programs_equal_plain_torch(four: ProcMesh) -> None:
    mesh = four.flatten("dp").slice(dp=slice(0, 2))._device_mesh
    for number in range(60):
        _check_program(mesh, number)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_thousand_random_programs_equal_plain_torch(four: ProcMesh) -> None:
    mesh = four.flatten("dp")._device_mesh
    for number in range(1000, 2000):
        _check_program(mesh, number)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _add_up(mesh: Any, rounds: int, ops: int) -> list[list[int]]:
    """After each round of operations, views and writes: the memory here and of each worker. What
    is counted there stays the same."""
    client = mesh.client
    resident, sizes = remote(_resident_bytes), []
    memory = []
    with mesh.activate():
        x = torch.ones(4)
        resident.call().get()  # A template of its own.
        for _ in range(rounds):
            for _ in range(ops // 4):
                x = x + 1
                x[1:].add_(1)
                x.sub_(0.5)
            client.settle()
            sizes.append((client.workers.num_values.call().get().values()[0], len(client.log)))
            memory.append([_resident_bytes(), *resident.call().get().values()])
    assert len(set(sizes)) == 1
    num = rounds * (ops // 4)
    assert inspect(x).tolist() == [1 + num * 0.5] + [1 + num * 1.5] * 3
    return memory


@pytest.mark.long
def test_operations_leave_nothing_behind(four: ProcMesh) -> None:
    _add_up(four.flatten("dp").slice(dp=slice(0, 2))._device_mesh, rounds=4, ops=5000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_operations_take_no_more_memory() -> None:
    # What telemetry keeps has an end, and it is further off than this test's.
    with configured(telemetry_events=0):
        procs = this_host().spawn_procs({"dp": 2})
        memory = _add_up(procs._device_mesh, rounds=10, ops=100_000)
        procs.stop().get()
    for before, after in zip(memory[4], memory[-1], strict=True):
        assert after - before < 2 * 2**20, memory
