"""A titan config on a rank's machine: finds its files, and refuses what the machine cannot do."""

from __future__ import annotations

import os
from pathlib import Path

from monarch.config_file import ConfigError, with_keys

from .config import Degrees, TitanConfig, section, value_at
from .versions import titan

_TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt")


def with_paths_here(config: TitanConfig) -> TitanConfig:
    """Return the config with relative paths that exist in this host's workspace made absolute."""

    def here(path: str) -> str:
        copy = Path(os.environ.get("WORKSPACE_DIR", ""), path)
        return path if Path(path).exists() or not copy.exists() else str(copy)

    keys = titan.keys
    paths = {
        key: value_at(config, key) for key in (keys.tokenizer, keys.data_path, keys.validation_path)
    }
    return with_keys(config, {key: here(path) for key, path in paths.items() if path is not None})


def check_machine(config: TitanConfig, degrees: Degrees) -> None:
    """Raise ConfigError for problems on this machine that TorchTitan would report later, less
    clearly.

    These are missing files, and settings that need a GPU.
    """
    if titan.device_type == "cpu":
        _check_cpu(config, degrees)
    keys = titan.keys
    tokenizer = Path(value_at(config, keys.tokenizer))
    if not any((tokenizer / name).is_file() for name in _TOKENIZERS):
        raise ConfigError(
            f"= {str(tokenizer)!r}: there is no tokenizer there (none of "
            f"{', '.join(_TOKENIZERS)}). `monarch recipe prepare titan-tiny` makes one to try with",
            key=keys.tokenizer,
        )
    is_validated = section(config, "validation").enable
    for key in (keys.data_path, keys.validation_path) if is_validated else (keys.data_path,):
        path = value_at(config, key)
        if path is not None and not Path(path).exists():
            raise ConfigError(f"= {path!r} does not exist on this machine", key=key)


def check_shared_gpus(degrees: Degrees, why_not_nccl: str) -> None:
    """Raise ConfigError for parallelism that gloo cannot do on GPUs that ranks share.

    ``why_not_nccl`` is "" if ranks do not share GPUs.
    """
    kinds = {"pipeline": degrees.pp, "context": degrees.cp}
    for kind, degree in kinds.items():
        if why_not_nccl and degree > 1:
            raise ConfigError(
                f"needs a GPU for each rank: {why_not_nccl}, and gloo does not send what is on "
                "GPUs. Give fewer ranks, with --procs, or set it to 1",
                key=f"parallelism.{kind}_parallel_degree",
            )


def _check_cpu(config: TitanConfig, degrees: Degrees) -> None:
    if degrees.cp > 1:
        raise ConfigError(
            "needs GPUs: attention on a CPU cannot be split by sequence. Set it to 1",
            key="parallelism.context_parallel_degree",
        )
    if config.parallelism.expert_parallel_degree > 1:
        raise ConfigError(
            "needs GPUs: what sends tokens to experts elsewhere is written in triton. Set it to 1",
            key="parallelism.expert_parallel_degree",
        )
    profiler = section(config, "profiler")
    if profiler.enable_profiling or profiler.enable_memory_snapshot:
        name = titan.keys.profiler
        raise ConfigError(
            f"needs a GPU, as TorchTitan's profiler does: leave [{name}] disabled",
            key=f"{name}.enable_profiling",
        )
