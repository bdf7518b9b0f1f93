"""A pipeline of two stages: `python examples/tensors/pipeline.py`.

Each stage is a slice of the mesh. One program issues for both, in one order, and they work at the
same time: while the second stage has one micro-batch, the first has the next.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from monarch import grad_generator, inspect
from monarch.actor import this_host

MICRO_BATCHES, ROWS = 4, 8

if __name__ == "__main__":
    procs = this_host().spawn_procs({"pp": 2})
    stages = [procs.slice(pp=n)._device_mesh for n in range(2)]
    with stages[0].activate():
        torch.manual_seed(0)
        first = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
        inputs = torch.linspace(-1, 1, MICRO_BATCHES * ROWS * 4).view(MICRO_BATCHES, ROWS, 4)
    with stages[1].activate():
        second = nn.Linear(32, 1)
        targets = torch.linspace(0, 1, MICRO_BATCHES * ROWS).view(MICRO_BATCHES, ROWS, 1)
    optimizers = [torch.optim.SGD(stage.parameters(), 0.1) for stage in (first, second)]

    def step():
        forward = []
        for n in range(MICRO_BATCHES):
            out = first(inputs[n])
            moved = out.detach().to_mesh(stages[1]).requires_grad_()
            forward.append((out, moved))
        losses = []
        for n, (out, moved) in enumerate(forward):
            loss = F.mse_loss(second(moved), targets[n])
            *grads, back = grad_generator(loss, [*second.parameters(), moved])
            add(second, grads)
            add(first, grad_generator(out, first.parameters(), [back.to_mesh(stages[0])]))
            losses.append(loss.detach())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return losses

    def add(stage, grads):
        with torch.no_grad():
            for parameter, grad in zip(stage.parameters(), grads, strict=True):
                part = grad / MICRO_BATCHES
                parameter.grad = part if parameter.grad is None else parameter.grad + part

    for number in range(30):
        losses = step()
        if number % 10 == 9:
            mean = sum(loss.item() for loss in inspect(losses)) / MICRO_BATCHES
            print(f"step {number}: loss {mean:.6f}")
    procs.stop().get()
