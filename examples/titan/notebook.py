"""TorchTitan from notebook cells, in the older spelling: an allocator, and a wrapper of one actor.

    mkdir tiny && cd tiny && python ../notebook.py

The cells are those of the article that introduced Monarch in notebooks, on two procs in place of
128 GPUs. After a training, the config is changed and the same processes train again. The article's
`breakpoint()` is left out, so that all cells run with nobody there; `monarch debug` opens it.
"""

import asyncio
import logging
import os
import socket
import sys
from pathlib import Path

import torch

from monarch._rust_bindings.monarch_hyperactor.alloc import AllocConstraints, AllocSpec
from monarch.actor import Actor, ProcMesh, current_rank, endpoint, this_host
from monarch.actor.alloc import LocalAllocator
from monarch.utils import setup_env_for_distributed
from monarch_recipes.titan.tiny import prepare
from monarch_recipes.titan.versions.cpu import import_torchtitan

import_torchtitan()  # without a GPU, TorchTitan could not be imported otherwise

from torchtitan.config import ConfigManager, JobConfig  # noqa: E402
from torchtitan.tools.logging import logger  # noqa: E402
from torchtitan.train import Trainer  # noqa: E402

NUM_NODES = 1
NUM_GPUS = 2


class TitanTrainerWrapper(Actor):
    def __init__(self, job_config: JobConfig):
        self.rank = current_rank().rank
        self.job_config = job_config

    @endpoint
    def init(self):
        logging.getLogger().addHandler(logging.StreamHandler(sys.stderr))
        print(f"Initializing actor: {self.rank} {current_rank()=} {socket.gethostname()=}")

    @endpoint
    def train(self):
        logger.info("Starting training")
        config = self.job_config
        trainer: Trainer | None = None

        try:
            trainer = Trainer(config)
            trainer.train()

            if config.checkpoint.create_seed_checkpoint:
                trainer.checkpointer.save(
                    curr_step=0,
                )
                logger.info("Created seed checkpoint")
            else:
                trainer.train()
        finally:
            if trainer:
                trainer.close()

            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
                logger.info("Process group destroyed.")
        print("Done training")


class Process(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


async def make_procs() -> ProcMesh:
    await this_host().preload(["torch", "monarch_recipes.titan.versions"])  # procs find it imported
    alloc = LocalAllocator().allocate(AllocSpec(AllocConstraints(), hosts=NUM_NODES, gpus=NUM_GPUS))
    return await ProcMesh.from_alloc(alloc)


async def async_main(proc_mesh: ProcMesh, job_config: JobConfig):
    torch.use_deterministic_algorithms(True)
    await setup_env_for_distributed(proc_mesh)
    await proc_mesh.logging_option(stream_to_client=True, aggregate_window_sec=3)
    trainer_actor = await proc_mesh.spawn("trainer_actor", TitanTrainerWrapper, job_config)
    await trainer_actor.init.call()
    await trainer_actor.train.call()


def get_job_name(num_nodes: int, num_gpus: int) -> str:
    return f"titan-{num_nodes}x{num_gpus}"


def make_config(*more: str) -> JobConfig:
    config_manager = ConfigManager()
    job_name = get_job_name(NUM_NODES, NUM_GPUS)
    manual_args = [
        "--job.config_file",
        os.path.expanduser("titan.toml"),
        "--model.tokenizer-path",
        os.path.abspath("tokenizer"),
        "--training.steps",
        "3",
        "--training.dataset_path",
        os.path.abspath("data/train"),
        "--job.dump_folder",
        os.path.abspath("outputs") + "/" + job_name + "".join(more),
    ]
    return config_manager.parse_args([*manual_args, *more])


async def cells() -> None:
    proc_mesh = await make_procs()
    processes = await proc_mesh.spawn("processes", Process)
    pids = await processes.pid.call()
    await async_main(proc_mesh, make_config())
    await async_main(proc_mesh, make_config("--parallelism.tensor_parallel_degree=2"))
    again = await processes.pid.call()
    print("the same processes:", list(again.values()) == list(pids.values()))
    await proc_mesh.stop()


if __name__ == "__main__":
    prepare(Path.cwd())
    sys.path.insert(0, os.getcwd())  # where prepare() put the model's code
    asyncio.run(cells())
