"""Surgery on a training run that lives, cell by cell, as in a notebook.

Open it in an editor that knows `# %%` cells, or run it: `python examples/tensors/surgery.py`.
Model, optimizer and data stay where they are, on the procs; what the cells do between the steps is
ordinary torch.
"""

# %% Two procs, a model, and a few steps
import torch
import torch.nn.functional as F
from torch import nn

from monarch import fetch_shard, inspect, remote
from monarch.actor import this_host

procs = this_host().spawn_procs({"dp": 2})
procs.activate()  # Until the end: no `with` across cells.
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
for parameter in model.parameters():
    parameter.data = parameter.data.reduce("dp", "avg")  # The same weights everywhere.
optimizer = torch.optim.SGD(model.parameters(), 0.1)


@remote(propagate=lambda rank: torch.empty(8, 4))
def load(rank):
    x = torch.linspace(-1, 1, 32).view(8, 4) + int(rank)
    return x


x = load(procs.rank_tensor("dp"))


def step():
    loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.reduce_("dp", "avg")
    optimizer.step()
    return inspect(loss.detach().reduce("dp", "avg")).item()


losses = [step() for _ in range(5)]
print("it learns:", losses[-1] < losses[0])

# %% Freeze the first layer, and go on
before = inspect(model[0].weight).tolist()
model[0].requires_grad_(False)
losses += [step() for _ in range(3)]
print("frozen:", inspect(model[0].weight).tolist() == before)

# %% Look at a gradient on one rank, before it is averaged
loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
(grad,) = torch.autograd.grad(loss, [model[2].bias])
ranks = [fetch_shard(grad, dp=n).result().item() for n in range(2)]
print("gradients of the ranks differ:", ranks[0] != ranks[1])


# %% Patch the data on the workers, and go on
@remote(propagate=lambda x: x.clone())
def centered(x):
    return x - x.mean()


x = centered(x)
model[0].requires_grad_(True)
losses += [step() for _ in range(10)]
print("it goes on:", losses[-1] < losses[-10])

# %% The end
procs._device_mesh.deactivate()
procs.stop().get()
