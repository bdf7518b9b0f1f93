"""Pre-training with TorchTitan's own trainer: FSDP, tensor and pipeline parallelism from its TOML.

    monarch recipe prepare titan-tiny
    monarch run titan --config titan-tiny/titan.toml
    monarch run titan --config titan-tiny/titan.toml parallelism.tensor_parallel_degree=2

The config file has TorchTitan's format and keys. On two CPU cores, the prepared small Llama learns
from half a megabyte of English; with GPUs the same commands use NCCL. When a rank dies or hangs,
all ranks start again from copies in their hosts' memory, or from the last checkpoint.

The recipe is this folder; `monarch recipe cp titan` copies it for you to change. Begin with
`recipe`, which drives a run from the client. `training` is the work of one rank, and gives
TorchTitan's metrics our names. The other files:

    config        TorchTitan's sections; which keys are live; checks of the config
    checkpoints   saves checkpoints, and checks them before they are loaded
    shards        one rank's part of the state, for a new process of the same rank
    planning      --plan: builds the model on ranks that do not exist
    tiny          `prepare titan-tiny`: text, tokenizer, model, configs
    next_start    whether a restart with edited code would still fit the run
    machine       paths on a rank's host; what the host cannot do
    process       restores a process after a training
    versions      everything that is used of TorchTitan, for 0.2 and 0.3
"""

from .config import TitanConfig, from_flags, in_folder, with_values
from .planning import plan
from .recipe import (
    FAST_DEV_RUN,
    PRELOAD,
    PREPARED_VARIANTS,
    Driver,
    TitanOutcome,
    TitanTrainer,
    check,
    run,
)
from .tiny import prepare
from .versions import register_model

__all__ = [
    "FAST_DEV_RUN",
    "PRELOAD",
    "PREPARED_VARIANTS",
    "Driver",
    "TitanConfig",
    "TitanOutcome",
    "TitanTrainer",
    "check",
    "from_flags",
    "in_folder",
    "plan",
    "prepare",
    "register_model",
    "run",
    "with_values",
]
