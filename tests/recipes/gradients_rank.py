"""The ranks of the scenarios in test_recipes_gradients.py: `gradients_rank.py FOLDER`.

Each scenario is trained twice: as the recipes do, and by plain DDP with `find_unused_parameters`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from monarch.runtime.ends.process_group import die_with_parent
from monarch.tools.network import free_port
from monarch_recipes.collective import take_from
from monarch_recipes.fingerprint import digest_of, state_of, sums_of
from monarch_recipes.gradients import AveragedGradients

FOLDER = Path(sys.argv[1])
WORLD = 2
NUM_STEPS = 8
EDITED = range(3, 6)  # the steps with other code


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.down(torch.relu(self.up(self.norm(value))))


class Model(nn.Module):
    """With a tied embedding, a frozen head that may be set free, and buffers of BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.BatchNorm1d(8)
        self.late = nn.Linear(8, 8)
        self.late.requires_grad_(False)
        self.out = nn.Linear(8, 12, bias=False)
        self.out.weight = self.embedding.weight
        self.mode = ""

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        mode = self.mode
        value = self.embedding(numbers)
        if mode == "only the frozen":
            self.late.requires_grad_(True)
            return self.late(value.detach()) @ self.out.weight.detach().T
        if mode == "frozen":
            self.blocks[1].requires_grad_(False)
        elif mode == "set free":
            self.late.requires_grad_(True)
        elif mode == "replaced":
            self.blocks[1].up.weight = nn.Parameter(self.blocks[1].up.weight.detach().clone())
        else:
            self.blocks[1].requires_grad_(True)
        for number, block in enumerate(self.blocks):
            if not (mode == "left out" and number == 1):
                value = block(value)
            if mode == "twice" and number == 1:
                value = block(value)
        if mode == "set free":
            value = value + self.late(value)
        return self.out(self.norm(value))


class Remembering(torch.optim.Optimizer):
    """Momentum, decay and a mean of the weights: a step with a gradient of zero is one, too."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["moment"] = torch.zeros_like(parameter)
                    state["mean"] = parameter.detach().clone()
                state["moment"].mul_(0.9).add_(parameter.grad)
                parameter.mul_(0.99).add_(state["moment"], alpha=-group["lr"])
                state["mean"].lerp_(parameter, 0.1)


def on_all(name: str) -> Callable[[int, int, int], str]:
    return lambda step, rank, micro: name if step in EDITED else ""


def on_rank_1(name: str) -> Callable[[int, int, int], str]:
    return lambda step, rank, micro: name if step in EDITED and rank == 1 else ""


# What a rank's code does in a micro-batch of a step.
MODES: dict[str, Callable[[int, int, int], str]] = {
    "left out": on_all("left out"),
    "left out on one rank": on_rank_1("left out"),
    "left out on the other rank": lambda step, rank, _: "left out" if (step + rank) % 2 else "",
    "left out in the last pass": lambda step, _, micro: "left out" if micro == 2 else "",
    "left out in the first passes": lambda step, _, micro: "left out" if micro < 2 else "",
    "left out from the start": lambda step, rank, micro: "left out" if step < 4 else "",
    "twice": on_all("twice"),
    "twice on one rank": on_rank_1("twice"),
    "frozen": on_all("frozen"),
    "frozen on one rank": on_rank_1("frozen"),
    "set free": lambda step, rank, micro: "set free" if step >= 3 else "",
}  # fmt: skip
# Plain DDP cannot do these.
OWN_MODES: dict[str, Callable[[int, int, int], str]] = {
    "set free on one rank": on_rank_1("set free"),
    "nothing that DDP knows": on_rank_1("only the frozen"),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
    "remembering": Remembering,
}


def train(mode: Callable[[int, int, int], str], optimizer: str, *, plain: bool) -> dict[str, Any]:
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Model()
    optim = OPTIMIZERS[optimizer](model.parameters())
    parallel = DistributedDataParallel(model, find_unused_parameters=plain)
    parallel.broadcast_buffers = False
    gradients = AveragedGradients(parallel, model, optim)
    unused: list[list[str]] = []
    for step in range(NUM_STEPS):
        generator = torch.Generator().manual_seed(100 * step + rank)
        names: tuple[str, ...] = ()
        for micro in range(3):
            is_last = micro == 2
            model.mode = mode(step, rank, micro)
            if plain and model.mode == "set free" and not model.late.weight.requires_grad:
                model.late.requires_grad_(True)
                parallel = DistributedDataParallel(model, find_unused_parameters=True)
                parallel.broadcast_buffers = False
            numbers = torch.randint(12, (4,), generator=generator)
            if is_last and not plain:
                gradients.expect()
            with contextlib.nullcontext() if is_last else parallel.no_sync():
                loss = nn.functional.cross_entropy(parallel(numbers), numbers.roll(1))
                loss.backward()
        if not plain:
            count = torch.tensor(gradients.complete())
            dist.all_reduce(count)
            names = gradients.agree() if count else ()
        unused.append(sorted(names))
        optim.step()
        optim.zero_grad()
    state = state_of(model, [optim])
    trained = {name: value for name, value in state.items() if "running" not in name}
    return {"digest": digest_of(sums_of(trained)), "unused": unused}


def find() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, mode in MODES.items():
        for optimizer in OPTIMIZERS:
            ways = (
                (way, train(mode, optimizer, plain=way == "plain")) for way in ("ours", "plain")
            )
            found[f"{name}, {optimizer}"] = dict(ways)
    for name, mode in OWN_MODES.items():
        found[name] = train(mode, "adamw", plain=False)
    try:
        train(on_rank_1("replaced"), "adamw", plain=False)
    except Exception as error:
        found["replaced"] = f"{type(error).__name__}: {error}"
    found["taken"] = taken()
    return found


def taken() -> list[str]:
    """The digests before and after rank 1's state is taken, and after a step on each."""
    torch.manual_seed(dist.get_rank())
    model = Model()
    optim = OPTIMIZERS["adamw"](model.parameters())
    if dist.get_rank() == 1:  # Only there is there any state.
        model(torch.arange(12)).sum().backward()
        optim.step()
    before = digest_of(sums_of(state_of(model, [optim])))
    take_from(1, model, optim)
    return [before, digest_of(sums_of(state_of(model, [optim])))]


def main(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    (FOLDER / f"{rank}.json").write_text(json.dumps(find()))
    dist.barrier()


if __name__ == "__main__":
    port = free_port()
    children = []
    for rank in range(WORLD):
        pid = os.fork()
        if not pid:
            die_with_parent()
            try:
                main(rank, port)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(pid)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
