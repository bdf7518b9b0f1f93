"""Weights that follow a trainer: two ranks publish their shards, readers fetch what they need.

    python examples/rdma/weights.py

The trainers hold a model sharded by rows (as FSDP does), a generator fetches all of it as a plain
module, and another only a part, in bfloat16. Each sees whole versions only. Needs torch.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from monarch.actor import Actor, current_rank, endpoint, this_host
from monarch.rdma import SharedStateDict
from monarch.spmd import setup_torch_elastic_env

SIZE = 8


class Trainer(Actor):
    def __init__(self, weights: SharedStateDict) -> None:
        self.weights = weights

    @endpoint
    def train(self, step: int) -> int:
        rank = current_rank().rank
        if not dist.is_initialized():
            dist.init_process_group("gloo")  # The shards are on the CPU, here.
        mesh = init_device_mesh("cpu", (2,))
        whole = {
            "weight": torch.full((SIZE, SIZE), float(step)),
            "bias": torch.full((SIZE,), -float(step)),
        }
        state = {
            name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in whole.items()
        }
        return self.weights.publish(state, rank=rank, num_ranks=2).get()


class Generator(Actor):
    def __init__(self, weights: SharedStateDict) -> None:
        self.weights = weights
        self.model = torch.nn.Linear(SIZE, SIZE)
        self.bias = torch.zeros(SIZE, dtype=torch.bfloat16)

    @endpoint
    def follow(self, num_versions: int) -> list[str]:
        seen = []
        for version in self.weights.subscribe():
            number = self.weights.fetch(self.model).get()
            self.weights.fetch({"bias": self.bias}, version=number).get()
            weight = self.model.weight
            seen.append(f"version {number}: {weight.min():.0f} to {weight.max():.0f}")
            if version >= num_versions:
                return seen
        return seen


def main() -> None:
    host = this_host()
    # All are forked from one process that has torch already.
    procs = host.spawn_procs({"gpus": 3}, preload=["torch.distributed.tensor"])
    ranks = procs.slice(gpus=slice(0, 2))
    setup_torch_elastic_env(ranks)
    weights = SharedStateDict("policy")
    trainers = ranks.spawn("trainers", Trainer, weights)
    generator = procs.slice(gpus=2).spawn("generator", Generator, weights)
    followed = generator.follow.call_one(3)
    for step in range(1, 4):
        trainers.train.call(step).get()
    print("\n".join(followed.get()[-1:]))


if __name__ == "__main__":
    main()
