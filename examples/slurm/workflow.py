"""The workflow on a Slurm cluster: reserve nodes, spawn, train, give them back.

    python examples/slurm/workflow.py 2 4         # nodes, and procs on each

It is Monarch's tutorial "Interactive Distributed Applications" in its own order, on a login node or
wherever `sbatch` works and the nodes can be reached. The trainer is a small model with
DistributedDataParallel on CPUs, so that it runs on any cluster; `examples/titan/workflow.py` has
TorchTitan's trainer in its place. The Python that runs this is the one that the nodes use, so
it must lie in a folder that they share. `MONARCH_PORT` is the port at which the nodes listen, by
default 22222.
"""

import asyncio
import os
import sys

import torch

from monarch.actor import Actor, current_rank, endpoint
from monarch.job import JobTrait, SlurmJob
from monarch.utils import setup_env_for_distributed


def create_slurm_job(mesh_name: str, num_nodes: int, time_limit: str = "06:00:00") -> SlurmJob:
    """Return a Slurm job of ``num_nodes`` nodes for the mesh ``mesh_name``."""
    return SlurmJob(
        meshes={mesh_name: num_nodes},
        job_name="monarch_ddp",
        time_limit=time_limit,
        python_exe=sys.executable,
        monarch_port=int(os.environ.get("MONARCH_PORT", "22222")),
    )


class TrainerActor(Actor):
    """One instance on each proc."""

    def __init__(self) -> None:
        self.uid = f"[trainer_{current_rank().rank}]"

    @endpoint
    def ping_rank(self) -> None:
        """Log a line with the name of this actor."""
        print(f"{self.uid} Ping!")

    @endpoint
    def start_training(self, num_steps: int) -> float:
        """Learn to double a number. Return the loss after ``num_steps``, equal on all ranks."""
        torch.distributed.init_process_group("gloo")
        try:
            torch.manual_seed(0)
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            inputs = torch.linspace(-1, 1, 32).unsqueeze(1)
            for _ in range(num_steps):
                loss = (model(inputs) - 2 * inputs).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            return loss.item()
        finally:
            torch.distributed.destroy_process_group()


async def execute_training(num_nodes: int, procs_per_node: int) -> None:
    job: JobTrait | None = None
    try:
        # 1. Create a Slurm job with N nodes
        job = create_slurm_job("mesh0", num_nodes)
        job_state = job.state()

        # 2. Create a process mesh on the allocation
        proc_mesh = job_state.mesh0.spawn_procs({"procs": procs_per_node})

        # 3. Configure remote logging behavior
        await proc_mesh.logging_option(stream_to_client=True)

        # 4. Set up the environment for torch.distributed
        await setup_env_for_distributed(proc_mesh)

        # 5. Spawn TrainerActor on each proc
        trainer = proc_mesh.spawn("trainer_actor", TrainerActor)

        # 6. Execute the training job across all actors
        await trainer.ping_rank.call()
        losses = await trainer.start_training.call(100)
        print("losses", *(f"{loss:.6f}" for loss in losses.values()))
    finally:
        # Always give the allocation back
        if job:
            job.kill()


if __name__ == "__main__":
    asyncio.run(execute_training(*map(int, sys.argv[1:] or (2, 2))))
