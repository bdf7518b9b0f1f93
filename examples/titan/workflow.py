"""The whole workflow of a TorchTitan job: allocate, spawn, configure, train, clean up.

    mkdir tiny && cd tiny && python ../workflow.py

It is Monarch's tutorial "Interactive Distributed Applications", line by line, on a small Llama that
is prepared in the folder it is started in. What differs: the job is of processes on this machine,
for which neither GPU nor cluster is needed (`examples/slurm` has one on a cluster); the
parameters are those of two CPU cores; and an actor's uid has its own rank, where the tutorial's
would raise a NameError; and the tutorial's `breakpoint()` is left out, so that it runs to its end
with nobody there. With it, the call stands there, and `monarch debug` opens it.
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
from monarch_recipes.titan.tiny import prepare
from monarch_recipes.titan.versions.cpu import import_torchtitan

import_torchtitan()  # without a GPU, TorchTitan could not be imported otherwise

from torchtitan.config import ConfigManager, JobConfig  # noqa: E402
from torchtitan.tools.logging import init_logger, logger  # noqa: E402
from torchtitan.train import Trainer  # noqa: E402


def create_job(mesh_name: str, num_nodes: int) -> JobTrait:
    """Reserve hosts: here on this machine. Their procs find the heavy modules imported."""
    return ProcessJob({mesh_name: num_nodes}, preload=["torch", "monarch_recipes.titan.versions"])


class TrainerActor(Actor):
    """Wraps TorchTitan's trainer: one instance on each proc."""

    def __init__(self, job_config: "JobConfig") -> None:
        self.job_config = job_config

        # current_rank() provides access to this actor's rank in the process mesh
        self.rank = current_rank().rank
        self.uid = f"[trainer_{self.rank}]"

    @endpoint
    async def ping_rank(self) -> None:
        """Log a line with the name of this actor."""
        logger.info(f"{self.uid} Ping!")

    @endpoint
    async def start_training(self) -> None:
        """Train from the first step to the last. An error is raised at the client that called."""
        init_logger()
        trainer: Trainer | None = None
        try:
            # Initialize TorchTitan trainer
            trainer = Trainer(self.job_config)
            logger.info(f"{self.uid} initialized successfully and starting training")

            # Run the training loop
            trainer.train()

        except Exception as e:
            logger.error(f"{self.uid} training failed: {e}")
            if trainer:
                trainer.close()
            # Note: error is propagated back to the controller
            raise e

        else:
            # Training completed successfully
            trainer.close()
            logger.info(f"{self.uid} training completed successfully")

        finally:
            # Clean up distributed process group
            torch.distributed.destroy_process_group()
            logger.info(f"{self.uid} trainer cleaned up")


@dataclass
class RunParams:
    """The settings that depend on the model and the machines."""

    training_steps: int = 3
    model_config: str = "titan.toml"
    tokenizer: str = "tokenizer"
    dataset: str = "texts"
    num_nodes: int = 1
    gpus_per_node: int = 2


def make_job_config() -> JobConfig:
    """Return TorchTitan's own config, from its file and its flags."""
    # Calculate total parallelism based on cluster size
    data_parallel_shard_degree = RunParams.num_nodes * RunParams.gpus_per_node
    output_path = "./outputs"
    # Construct paths relative to script directory
    script_dir = os.getcwd()

    # Build argument list for TorchTitan's ConfigManager
    # These override defaults from the model config file
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
        output_path,
        # continue to configure as needed
    ]
    config_manager = ConfigManager()
    job_config = config_manager.parse_args(default_args)
    return job_config


async def execute_training() -> None:
    """Execute the complete distributed training workflow."""
    job_config = make_job_config()
    job = None
    mesh_name = "mesh0"
    try:
        # 1. Create a job with N nodes
        job = create_job(mesh_name, RunParams.num_nodes)
        job_state = job.state()

        # 2. Create a process mesh on the machine allocation; so many procs on each host
        logger.info("Creating process mesh...")
        total_gpus = RunParams.gpus_per_node * RunParams.num_nodes
        proc_mesh = job_state.mesh0.spawn_procs({"gpus": total_gpus})

        # 3. Configure remote logging behavior
        logger.info("Configuring logging...")
        await proc_mesh.logging_option(
            stream_to_client=True,
            # aggregate_window_sec=None  # Uncomment to disable log batching
        )

        # 4. Setup environment for torch.distributed
        logger.info("Setting up distributed environment...")
        await setup_env_for_distributed(proc_mesh)

        # 5. Spawn TrainerActor on each GPU
        logger.info("Spawning trainer actors...")
        trainer = proc_mesh.spawn(
            "trainer_actor",  # Name for the actor group
            TrainerActor,  # Actor class to instantiate
            job_config,  # Arguments to __init__
        )

        # 6. Execute the training job across all actors
        logger.info("Starting distributed training...")
        await trainer.start_training.call()

        logger.info("Training completed successfully!")

        # Call on all ranks
        await trainer.ping_rank.call()

        # Call-and-forget on all ranks
        trainer.ping_rank.broadcast()

        # Call on ONE random rank
        await trainer.ping_rank.choose()

    except Exception as e:
        logger.error(f"Training workflow failed: {e}")

    finally:
        # Always clean up the machine allocation
        if job:
            await cleanup_job(job)


async def cleanup_job(job: JobTrait) -> None:
    """End the job, which releases its machines."""
    job.kill()
    logger.info("Job terminated successfully")


if __name__ == "__main__":
    init_logger()
    prepare(Path.cwd())
    sys.path.insert(0, os.getcwd())  # where prepare() put the model's code
    logger.info("Starting Monarch + TorchTitan Distributed Training")

    asyncio.run(execute_training())

    logger.info("Workflow completed!")
