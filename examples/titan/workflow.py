"""The whole workflow of a TorchTitan job: allocate, spawn, configure, train, clean up.

    mkdir tiny && cd tiny && python ../workflow.py

It prepares a small Llama in the folder that it is started in, and needs neither GPU nor cluster. On
one, make another job: `SlurmJob(meshes={...})` has the same methods as the `ProcessJob` here.
"""

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from monarch.actor import Actor, current_rank, endpoint
from monarch.job import JobTrait, ProcessJob
from monarch.utils import setup_env_for_distributed
from monarch_recipes.titan_cpu import import_torchtitan
from monarch_recipes.titan_tiny import prepare

import_torchtitan()  # without a GPU, TorchTitan could not be imported otherwise

from torchtitan.config import ConfigManager, JobConfig  # noqa: E402
from torchtitan.tools.logging import init_logger, logger  # noqa: E402
from torchtitan.train import Trainer  # noqa: E402


@dataclass
class RunParams:
    training_steps: int = 3
    model_config: str = "titan.toml"
    tokenizer: str = "tokenizer"
    dataset: str = "texts"
    num_nodes: int = 1
    gpus_per_node: int = 2


def create_job(mesh_name: str, num_nodes: int) -> JobTrait:
    """Hosts on this machine. Their procs find the heavy modules imported."""
    return ProcessJob({mesh_name: num_nodes}, preload=["torch", "monarch_recipes.titan_api"])


class TrainerActor(Actor):
    """Wraps TorchTitan's trainer: one instance on each proc."""

    def __init__(self, job_config: JobConfig) -> None:
        self.job_config = job_config
        self.rank = current_rank().rank
        self.uid = f"[trainer_{self.rank}]"

    @endpoint
    async def ping_rank(self) -> str:
        return f"{self.uid} Ping!"

    @endpoint
    async def start_training(self) -> int:
        init_logger()
        trainer: Trainer | None = None
        try:
            trainer = Trainer(self.job_config)
            logger.info(f"{self.uid} initialized successfully and starting training")
            trainer.train()
        except Exception as error:
            logger.error(f"{self.uid} training failed: {error}")
            if trainer:
                trainer.close()
            raise
        else:
            trainer.close()
            logger.info(f"{self.uid} training completed successfully")
            return trainer.step
        finally:
            torch.distributed.destroy_process_group()
            logger.info(f"{self.uid} trainer cleaned up")


def make_job_config() -> JobConfig:
    """TorchTitan's own config, from its file and its flags."""
    data_parallel_shard_degree = RunParams.num_nodes * RunParams.gpus_per_node
    script_dir = os.getcwd()
    default_args = [
        "--job.config_file",
        os.path.join(script_dir, RunParams.model_config),
        "--model.tokenizer_path",
        os.path.join(script_dir, RunParams.tokenizer),
        "--parallelism.data_parallel_shard_degree",
        str(data_parallel_shard_degree),
        "--training.steps",
        str(RunParams.training_steps),
        "--training.dataset",
        RunParams.dataset,
        "--job.dump_folder",
        "./outputs",
    ]
    return ConfigManager().parse_args(default_args)


async def execute_training() -> None:
    job_config = make_job_config()
    mesh_name = "mesh0"
    job = create_job(mesh_name, RunParams.num_nodes)
    try:
        job_state = job.state()
        # Dimensions of procs are those on each host.
        proc_mesh = job_state.mesh0.spawn_procs({"gpus": RunParams.gpus_per_node})
        await proc_mesh.logging_option(stream_to_client=True)
        await setup_env_for_distributed(proc_mesh)
        trainer = proc_mesh.spawn("trainer_actor", TrainerActor, job_config)

        pings = await trainer.ping_rank.call()
        print(sorted(pings.values()))
        print(await trainer.ping_rank.choose())
        steps = await trainer.start_training.call()
        print("steps done:", list(steps.values()))
    finally:
        await cleanup_job(job)


async def cleanup_job(job: JobTrait) -> None:
    """Give the machines back."""
    job.kill()
    print("Job terminated successfully")


if __name__ == "__main__":
    prepare(Path.cwd())
    sys.path.insert(0, os.getcwd())  # where prepare() put the model's code
    asyncio.run(execute_training())
    print("Workflow completed!")
