"""Distributed tensors: what an operation costs, and a training step beside torch.distributed.

    python benchmarks/tensors.py [STEP ...]

The steps: `ops` (CPU time of the controller an operation, by kind, beside a plain local add, and
beside what a controller must do that propagates fake tensors and walks the stack for each),
`messages` (bytes and messages an operation), `misses` (of the template cache in each step of a
training loop with a schedule), `ddp` (CPU time of all processes a training step, eager and
compiled, beside the same step in plain torch.distributed in the same procs) and `fetch` (a shard
beside a `call`, by the clock and CPU time). Prints a JSON object a line. Costs are CPU time of the
thread or process, as cores are shared; each is the lowest of several rounds, ratios are of one
round each, and their median is printed.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import monarch
from monarch import fetch_shard, inspect, remote
from monarch.actor import Actor, current_rank, endpoint, this_host

STEPS = ("ops", "messages", "misses", "ddp", "fetch")
_ROUNDS = 7
_FEATURES, _HIDDEN, _BLOCKS, _BATCH = 64, 256, 4, 16
_WORLD = 4


def _cost(work: Callable[[], object], num: int = 300) -> float:
    """Return the CPU microseconds of this thread that a call of ``work`` takes.

    It is the mean of ``num`` calls.
    """
    began = time.thread_time()
    for _ in range(num):
        work()
    return (time.thread_time() - began) / num * 1e6


def _say(step: str, **values: object) -> None:
    print(json.dumps({"step": step, **values}), flush=True)


def _deep(depth: int, work: Callable[[], object]) -> object:
    return work() if depth == 0 else _deep(depth - 1, work)


def ops() -> None:
    torch.set_num_threads(1)
    local, other = torch.rand(8, 8), torch.rand(8, 8)
    procs = this_host().spawn_procs({"gpus": 2})
    mode = FakeTensorMode()
    with mode:
        fake = torch.empty(8, 8)

    def upstreams() -> None:
        """Do what upstream Monarch's controller must do for an operation, apart from its messages.

        It propagates fake tensors and walks the stack.
        """
        with mode:
            torch.ops.aten.add.Tensor(fake, fake)
        traceback.extract_stack()

    with procs.activate():
        a, b = torch.rand(8, 8), torch.rand(8, 8)
    double = remote(lambda x: x * 2, propagate=lambda x: x.clone())
    kinds: dict[str, Callable[[], object]] = {
        "a + b": lambda: a + b,
        "a * 1.5": lambda: a * 1.5,
        "a @ b": lambda: a @ b,
        "a.add_(b)": lambda: a.add_(b),
        "a.t()": lambda: a.t(),
        "a[0]": lambda: a[0],
        "a.sum()": lambda: a.sum(),
        "layer_norm": lambda: F.layer_norm(a, (8,)),
        "a remote function": lambda: double(a),
    }
    with monarch.no_mesh.activate():
        _cost(lambda: local + other)
    costs: dict[str, list[float]] = {kind: [] for kind in kinds}
    plain, theirs = [], []
    for _ in range(_ROUNDS):
        plain.append(_cost(lambda: local + other, 3000))
        theirs.append(_cost(lambda: _deep(20, upstreams), 100))
        for kind, work in kinds.items():
            with procs.activate():
                work()
                inspect_later = fetch_shard(b)
                costs[kind].append(_cost(work))
            inspect_later.result()
            inspect(b)
    for kind, found in costs.items():
        ratios = [one / base for one, base in zip(found, plain, strict=True)]
        _say(
            "ops", kind=kind, us=round(min(found), 2), plain_add_us=round(min(plain), 2),
            ratio=round(statistics.median(ratios), 1),
        )  # fmt: skip
    ratios = [one / base for one, base in zip(theirs, costs["a + b"], strict=True)]
    _say("ops", kind="fake propagation and a stack, alone", us=round(min(theirs), 1),
         times_ours=round(statistics.median(ratios), 1))  # fmt: skip
    procs.stop().get()


def messages() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    client = procs._device_mesh.client
    with procs.activate():
        x, y = torch.ones(8, 8), torch.ones(8, 8)
        for _ in range(200):
            x = x + y
        inspect(y)
        before = client.num_ops, client.num_bytes, client.num_batches
        for _ in range(20_000):
            x = x + y
        inspect(y)
    num, octets, batches = (
        now - then
        for now, then in zip(
            (client.num_ops, client.num_bytes, client.num_batches), before, strict=True
        )
    )
    _say(
        "messages", ops=num, bytes_an_op=round(octets / num, 1), ops_a_message=round(num / batches)
    )
    procs.stop().get()


class Net(nn.Module):
    """A residual MLP, as the model of the training step."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ModuleList([nn.Linear(_FEATURES, _HIDDEN) for _ in range(_BLOCKS)])
        self.down = nn.ModuleList([nn.Linear(_HIDDEN, _FEATURES) for _ in range(_BLOCKS)])

    def forward(self, x: Any) -> Any:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(torch.relu(up(x)))
        return x


def _data(rank: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(100 + rank)
    shape = (_BATCH, _FEATURES)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def _rule(rank: Any) -> tuple[Any, Any]:
    return torch.empty(_BATCH, _FEATURES), torch.empty(_BATCH, _FEATURES)


load = remote(lambda rank: _data(int(rank)), propagate=_rule)


def misses() -> None:
    procs = this_host().spawn_procs({"dp": 2})
    mesh = procs._device_mesh
    makers: dict[str, Callable[[Any], Any]] = {
        "SGD": lambda p: torch.optim.SGD(p, 0.1),
        "AdamW": lambda p: torch.optim.AdamW(p, 0.01),
    }
    for name, make in makers.items():
        with mesh.activate():
            net = Net()
            x, y = load(mesh.rank("dp"))
            optimizer = make(net.parameters())
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
            found = []
            for _ in range(6):
                before = mesh.client.cache.num_misses
                loss = F.mse_loss(net(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                found.append(mesh.client.cache.num_misses - before)
        _say("misses", optimizer=f"{name}, cosine", by_step=found)
    procs.stop().get()


class Plain(Actor):
    """Makes the same training step in plain torch.distributed."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)  # As the workers of the engine have it.
        self.net = Net()
        self.rank = current_rank().rank

    @endpoint
    def begin(self, address: str) -> None:
        self.x, self.y = _data(self.rank)
        if not dist.is_initialized():
            dist.init_process_group("gloo", init_method=address, rank=self.rank, world_size=_WORLD)

    @endpoint
    def steps(self, num: int) -> None:
        torch.set_num_threads(1)
        for _ in range(num):
            loss = F.mse_loss(self.net(self.x), self.y)
            loss.backward()
            with torch.no_grad():
                for parameter in self.net.parameters():
                    grad = parameter.grad
                    dist.all_reduce(grad)
                    parameter -= grad.div_(_WORLD) * 0.1
                    parameter.grad = None

    @endpoint
    def cpu(self) -> float:
        return time.process_time()

    @endpoint
    def value(self) -> Any:
        return torch.ones(8, 8)


def ddp() -> None:
    torch.set_num_threads(1)
    procs = this_host().spawn_procs({"dp": _WORLD})
    mesh = procs._device_mesh
    plain = procs.spawn("plain", Plain)
    with mesh.activate():
        torch.ones(1).reduce("dp")
        net = Net()
        x, y = load(mesh.rank("dp"))
    parameters = list(net.parameters())
    inspect(x)
    plain.begin.call("env://").get()  # The engine has made the group.

    def step() -> Any:
        loss = F.mse_loss(net(x), y)
        loss.backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter -= parameter.grad.reduce_("dp", "sum").div_(float(_WORLD)) * 0.1
                parameter.grad = None
        return loss.detach()

    compiled = monarch.compile(step)

    def engine(one: Callable[[], Any], num: int) -> None:
        with mesh.activate():
            for _ in range(num):
                one()
        inspect(parameters[0])

    kinds: dict[str, Callable[[int], object]] = {
        "plain": lambda num: plain.steps.call(num).get(),
        "eager": lambda num: engine(step, num),
        "compiled": lambda num: engine(compiled, num),
    }

    def all_cpu() -> float:
        return sum(plain.cpu.call().get().values()) + time.process_time()

    costs: dict[str, list[float]] = {kind: [] for kind in kinds}
    walls: dict[str, list[float]] = {kind: [] for kind in kinds}
    num = 20
    for work in kinds.values():
        work(3)
    for _ in range(_ROUNDS):
        for kind, work in kinds.items():
            cpu, wall = all_cpu(), time.perf_counter()
            work(num)
            costs[kind].append((all_cpu() - cpu) / num * 1e3)
            walls[kind].append((time.perf_counter() - wall) / num * 1e3)
    for kind in kinds:
        ratios = [a / b for a, b in zip(costs[kind], costs["plain"], strict=True)]
        _say(
            "ddp", kind=kind, cpu_ms=round(min(costs[kind]), 2), wall_ms=round(min(walls[kind]), 2),
            ratio=round(statistics.median(ratios), 2),
        )  # fmt: skip
    procs.stop().get()


def fetch() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    plain = procs.spawn("plain", Plain)
    with procs.activate():
        x = torch.ones(8, 8)
    inspect(x)
    kinds: dict[str, Callable[[], object]] = {
        "fetch_shard": lambda: fetch_shard(x).result(),
        "call that gives a number": lambda: plain.cpu.call().get(),
        "call that gives such a tensor": lambda: plain.value.call().get(),
    }

    def cost(work: Callable[[], object]) -> tuple[float, float]:
        """Return the median wall time of ``work``, and its CPU time, in microseconds.

        The CPU time is that of all processes.
        """
        times = []
        cpu = sum(plain.cpu.call().get().values()) + time.process_time()
        for _ in range(40):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
        cpu = sum(plain.cpu.call().get().values()) + time.process_time() - cpu
        return statistics.median(times) * 1e6, cpu / len(times) * 1e6

    for work in kinds.values():
        work()
    rounds = [{kind: cost(work) for kind, work in kinds.items()} for _ in range(_ROUNDS)]
    for kind in list(kinds)[1:]:
        wall, cpu = (
            statistics.median(one["fetch_shard"][n] / one[kind][n] for one in rounds)
            for n in range(2)
        )
        _say("fetch", against=kind, wall_ratio=round(wall, 2), cpu_ratio=round(cpu, 2))
    procs.stop().get()


def main() -> None:
    _say("machine", torch=torch.__version__, cores=os.cpu_count(), load=os.getloadavg()[0])
    for name in sys.argv[1:] or STEPS:
        globals()[name]()


if __name__ == "__main__":
    main()
