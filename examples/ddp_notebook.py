"""DDP step by step, as from the cells of a notebook: `python examples/ddp_notebook.py`.

Each function below is a cell. The actor is an ordinary training loop in a class; the cells ask all
ranks at once, and can stop between any two steps to look at them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from monarch.actor import Actor, current_rank, endpoint, proc_mesh

WORLD_SIZE = 2


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


class DDPActor(Actor):
    """The usual DDP tutorial, in an actor."""

    def __init__(self):
        self.rank = current_rank().rank

    def _log(self, text):
        print(f"[Rank {self.rank}] {text}", flush=True)

    @endpoint
    async def setup(self):
        has_own_gpu = torch.cuda.device_count() >= WORLD_SIZE
        backend = "cpu:gloo,cuda:nccl" if has_own_gpu else "gloo"
        dist.init_process_group(backend, rank=self.rank, world_size=WORLD_SIZE)
        self.device = torch.device("cuda", self.rank) if has_own_gpu else torch.device("cpu")
        torch.manual_seed(self.rank)
        self.model = DDP(ToyModel().to(self.device))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.num_steps = 0

    @endpoint
    async def demo_basic(self):
        print(f"self.rank={self.rank} Running basic DDP example", flush=True)
        self.model(torch.randn(20, 10, device=self.device)).sum().backward()
        print(f"self.rank={self.rank} Finished running basic DDP example", flush=True)

    @endpoint
    async def get_system_info(self):
        is_cuda = self.device.type == "cuda"
        return {
            "rank": self.rank,
            "process_id": os.getpid(),
            "device_name": torch.cuda.get_device_name(self.device) if is_cuda else "CPU",
            "gpu_memory_allocated": torch.cuda.memory_allocated(self.device) if is_cuda else 0,
        }

    @endpoint
    async def train_step(self):
        began = time.perf_counter()
        self.optimizer.zero_grad()
        outputs = self.model(torch.randn(32, 10, device=self.device))
        loss = nn.functional.mse_loss(outputs, torch.randn(32, 5, device=self.device))
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.num_steps += 1
        seconds = time.perf_counter() - began
        self._log(f"Step {self.num_steps}: Loss={loss:.4f}, GradNorm={grad_norm:.4f}")
        return {
            "loss": loss.item(),
            "grad_norm": float(grad_norm),
            "throughput": WORLD_SIZE * 32 / seconds,
        }

    @endpoint
    async def cleanup(self):
        dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


async def spawn():
    # Spawn a process mesh
    local_proc_mesh = await proc_mesh(
        gpus=WORLD_SIZE,
        env={
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(free_port()),
        },
    )
    # Spawn our actor mesh on top of the process mesh
    return await local_proc_mesh.spawn("ddp_actor", DDPActor)


async def run_demo(ddp_actor):
    await ddp_actor.setup.call()
    await ddp_actor.demo_basic.call()


async def look_at_the_system(ddp_actors):
    print("Gathering system info from all ranks...")
    system_info = await ddp_actors.get_system_info.call()
    print("\n SYSTEM INFORMATION ACROSS ALL RANKS:")
    print("=" * 60)
    for point, rank_info in system_info:  # noqa: B007
        print(
            f"Rank {rank_info['rank']}: PID={rank_info['process_id']}, "
            f"Device={rank_info['device_name']}, "
            f"GPU Memory={rank_info['gpu_memory_allocated'] / 1e6:.1f}MB"
        )
    print(f"\nFound {len(system_info)} ranks in the mesh")
    all_rank_info = [value for point, value in system_info]
    total = sum(info["gpu_memory_allocated"] for info in all_rank_info)
    print(f"Total GPU memory across all ranks: {total / 1e6:.1f}MB")


async def train_step_by_step(ddp_actors):
    print("Running training steps...")
    for step in range(3):
        print(f"\n--- Step {step + 1} ---")
        step_results = await ddp_actors.train_step.call()
        all_results = [value for point, value in step_results]
        losses = [result["loss"] for result in all_results]
        grad_norms = [result["grad_norm"] for result in all_results]
        throughputs = [result["throughput"] for result in all_results]
        print(f"Losses across ranks: {[f'{loss:.4f}' for loss in losses]}")
        print(f"Gradient norms: {[f'{norm:.4f}' for norm in grad_norms]}")
        print(f"Avg throughput: {sum(throughputs) / len(throughputs):.1f} samples/sec")


async def main():
    ddp_actors = await spawn()
    await run_demo(ddp_actors)
    await look_at_the_system(ddp_actors)
    await train_step_by_step(ddp_actors)
    await ddp_actors.cleanup.call()


if __name__ == "__main__":
    asyncio.run(main())
