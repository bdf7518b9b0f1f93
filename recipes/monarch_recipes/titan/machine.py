"""A titan config on the machine of a rank: where its files lie, and what that machine cannot do."""

from __future__ import annotations

import os
from pathlib import Path

from monarch.config_file import ConfigError

from .api import device_type
from .config import Degrees, TitanConfig, with_values

_TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt")


def with_paths_here(config: TitanConfig) -> TitanConfig:
    """The config with relative paths replaced by those in this host's copy of the workspace, where
    they lie there."""

    def here(path: str | None) -> str | None:
        copy = Path(os.environ.get("WORKSPACE_DIR", ""), path or "")
        return path if path is None or Path(path).exists() or not copy.exists() else str(copy)

    return with_values(
        config,
        model={"hf_assets_path": here(config.model.hf_assets_path)},
        training={"dataset_path": here(config.training.dataset_path)},
        validation={"dataset_path": here(config.validation.dataset_path)},
    )


def check_machine(config: TitanConfig, degrees: Degrees) -> None:
    """Raise ConfigError for what TorchTitan would find out later here, and say less clearly."""
    if device_type == "cpu":
        _check_cpu(config, degrees)
    tokenizer = Path(config.model.hf_assets_path)
    if not any((tokenizer / name).is_file() for name in _TOKENIZERS):
        raise ConfigError(
            f"= {str(tokenizer)!r}: there is no tokenizer there (none of "
            f"{', '.join(_TOKENIZERS)}). `monarch recipe prepare titan-tiny` makes one to try with",
            key="model.hf_assets_path",
        )
    for section in ("training", "validation") if config.validation.enable else ("training",):
        path = getattr(config, section).dataset_path
        if path is not None and not Path(path).exists():
            raise ConfigError(
                f"= {path!r} does not exist on this machine",
                key=f"{section}.dataset_path",
            )


def check_shared_gpus(degrees: Degrees, why_not_nccl: str) -> None:
    """Raise ConfigError for what gloo cannot do on GPUs that ranks share."""
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
    if config.profiling.enable_profiling or config.profiling.enable_memory_snapshot:
        raise ConfigError(
            "needs a GPU, as TorchTitan's profiler does: leave [profiling] disabled",
            key="profiling.enable_profiling",
        )
