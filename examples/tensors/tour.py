"""Distributed tensors in one reading: `python examples/tensors/tour.py`.

Four procs on this machine. Every torch operation below runs in all of them; what is printed was
fetched.
"""

from __future__ import annotations

import torch

import monarch
from monarch import RemoteException, fetch_shard, inspect, remote
from monarch.actor import this_host

# A mesh of two by two procs. Once it is active, torch works on the mesh: one handle, four tensors.
procs = this_host().spawn_procs({"hosts": 2, "gpus": 2})
with procs.activate():
    x = torch.ones(2, 3)
    # What tells the procs apart is their rank.
    rank = procs.rank_tensor(("hosts", "gpus"))
    y = x * rank
print("on all procs alike:", inspect(x).tolist())
print("on rank 3:", inspect(y, hosts=1, gpus=1).tolist())

# Nothing is sent between procs but by reduce, to_mesh, and process groups in functions.
with procs.activate():
    total = y.reduce(("hosts", "gpus"), "sum")
    rows = rank.reduce("gpus", "stack")
print("summed:", inspect(total).tolist())
print("side by side:", inspect(rows, hosts=1, gpus=0).tolist())

# A slice of the mesh is a mesh; tensors are copied from one to another.
first, second = procs.slice(hosts=0), procs.slice(hosts=1)
with first.activate():
    a = first.rank_tensor("gpus") + 10
    b = a.to_mesh(second)
print("moved:", [inspect(b, gpus=n).item() for n in range(2)])


# Functions run where the tensors are; `propagate` says what comes out, without running them.
@remote(propagate=lambda x: x.sum())
def norm(x: torch.Tensor) -> torch.Tensor:
    return x.norm()


with procs.activate():
    print("norms:", inspect(norm(y), hosts=1, gpus=0).item())
    print("of each:", remote(lambda r: f"I am {int(r)}").call(rank).get().values())


# What fails, fails there: the program goes on, and hears of it where it asks for a value.
@remote(propagate=lambda x: x)
def divide(x: torch.Tensor) -> torch.Tensor:
    raise ZeroDivisionError("on purpose")


with procs.activate():
    broken = divide(y) + 1
    fine = y + 1
try:
    fetch_shard(broken).result()
except RemoteException as error:
    print("failed, as issued in line:", error.controller_frames[-1].line)
print("and the rest is well:", inspect(fine, hosts=0, gpus=1).tolist())


# What is done again and again becomes one message.
@monarch.compile
def smooth(x: torch.Tensor) -> torch.Tensor:
    for _ in range(100):
        x = (x + x.roll(1, 0)) / 2
    return x


with procs.activate():
    wave = torch.arange(8.0)
    for _ in range(3):
        wave = smooth(wave)
print("smooth:", [round(value, 3) for value in inspect(wave).tolist()])

procs._device_mesh.exit()
procs.stop().get()
