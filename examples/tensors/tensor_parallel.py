"""A tensor parallel MLP: `python examples/tensors/tensor_parallel.py`.

The first matrix is split by rows and the second by columns, so that a block needs one sum forward
and one backward. Both are autograd functions of three lines.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from monarch import inspect, remote
from monarch.actor import this_host

FEATURES, HIDDEN, RANKS = 16, 64, 2


class ToAll(torch.autograd.Function):
    """An identity whose gradient is the sum of all ranks' gradients, as all have the same input."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.reduce("tp", "sum")


class FromAll(torch.autograd.Function):
    """The sum of the inputs of all ranks; each rank gets the gradient of that sum."""

    @staticmethod
    def forward(ctx, x):
        return x.reduce("tp", "sum")

    @staticmethod
    def backward(ctx, grad):
        return grad


def shards(rank):
    """Return this rank's rows of the first matrix, and its columns of the second."""
    torch.manual_seed(0)
    up, down = torch.randn(HIDDEN, FEATURES) / 8, torch.randn(FEATURES, HIDDEN) / 8
    own = slice(int(rank) * HIDDEN // RANKS, (int(rank) + 1) * HIDDEN // RANKS)
    return up[own].clone(), down[:, own].clone()


def rule(rank):
    return torch.empty(HIDDEN // RANKS, FEATURES), torch.empty(FEATURES, HIDDEN // RANKS)


if __name__ == "__main__":
    procs = this_host().spawn_procs({"tp": RANKS})
    with procs.activate():
        up, down = (
            w.requires_grad_() for w in remote(shards, propagate=rule)(procs.rank_tensor("tp"))
        )
        optimizer = torch.optim.AdamW([up, down], 0.01)
        x = torch.linspace(-1, 1, 8 * FEATURES).view(8, FEATURES)
        y = x.roll(1, 1)
        for step in range(30):
            hidden = torch.relu(ToAll.apply(x) @ up.T)
            loss = F.mse_loss(FromAll.apply(hidden @ down.T), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 9:
                print(f"step {step}: loss {inspect(loss.detach()).item():.4f}")
    procs.stop().get()
