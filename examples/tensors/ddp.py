"""Data parallel training, written as one program: `python examples/tensors/ddp.py`.

Each proc has its rows; a line in the loop averages the gradients. The optimizer is torch's own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from monarch import inspect, remote
from monarch.actor import this_host
from monarch.builtins.random import set_manual_seed_remote

ROWS = 32
STEPS = 40


def rows(rank: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(int(rank))
    x = torch.randn(ROWS, 4, generator=generator)
    return x, x.sum(1, keepdim=True).sin()


load = remote(rows, propagate=lambda rank: (torch.empty(ROWS, 4), torch.empty(ROWS, 1)))

if __name__ == "__main__":
    procs = this_host().spawn_procs({"dp": 2})
    with procs.activate():
        set_manual_seed_remote(0)  # The same weights everywhere.
        model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(model.parameters(), 0.02)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        x, y = load(procs.rank_tensor("dp"))
        for step in range(STEPS):
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                parameter.grad.reduce_("dp", "avg")
            optimizer.step()
            schedule.step()
            if step % 10 == 0 or step == STEPS - 1:
                # Fetching waits; the steps between are only issued.
                value = inspect(loss.detach().reduce("dp", "avg")).item()
                print(f"step {step}: loss {value:.4f}")
    procs.stop().get()
