"""Pre-training with TorchTitan's own trainer: FSDP, tensor and pipeline parallelism from its TOML.

    monarch recipe prepare titan-tiny
    monarch run titan --config titan-tiny/titan.toml
    monarch run titan --config titan-tiny/titan.toml parallelism.tensor_parallel_degree=2

The config file is TorchTitan's, and so are the keys. On two CPU cores the small Llama that is
prepared learns from half a megabyte of English; with GPUs the same commands use NCCL. When a rank
dies or hangs, all begin again from copies in their hosts' memory, or from the last checkpoint.

The recipe is this folder; `monarch recipe cp titan` copies it, to be made your own. Begin with
`recipe`: how a run is driven, from the client. `training` is what one rank does,
and how TorchTitan's numbers get our names. Around these:

    config        TorchTitan's sections, which keys are live, what does not fit together
    checkpoints   what is saved, what is looked at before it is loaded
    shards        what one rank has, for a new process of the same rank
    planning      --plan: the model on ranks that do not exist
    tiny          `prepare titan-tiny`: text, tokenizer, model, configs
    next_start    what an edit means for the next start of the run
    machine       where files lie on a rank's host; what the host cannot do
    process       a process is left as it was found
    versions      all that is used of TorchTitan: 0.2 and 0.3
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
