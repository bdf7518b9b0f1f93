"""The titan recipe's config is TorchTitan's: its sections, its keys, its TOML files, its flags.

    monarch run titan --config llama3_8b.toml training.steps=100 optimizer.lr=1e-4

The classes are in `versions`. Four keys are the recipe's own: `max_restarts`, `fingerprint_every`,
`shadow_every` and `edit_patience_seconds` of `fault_tolerance`. `from_flags` reads TorchTitan's
command-line flags.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch.config_file import ConfigError, with_keys

from .versions import TitanConfig as TitanConfig
from .versions import titan


def from_flags(flags: Sequence[str]) -> TitanConfig:
    """Return the config for TorchTitan's flags.

    These include ``--job.config_file``, or ``--module`` and ``--config``. Raises ConfigError for
    flags at which TorchTitan's command line would end the program.
    """
    return titan.from_flags(flags)


_SHARD = "data_parallel_shard_degree"
# TorchTitan's keys of the degrees, in the order of `Degrees`, with our names for people.
_DEGREES = {
    "pipeline_parallel_degree": "pipeline",
    "data_parallel_replicate_degree": "DDP",
    _SHARD: "FSDP",
    "context_parallel_degree": "context",
    "tensor_parallel_degree": "tensor",
}


@dataclass(frozen=True)
class Degrees:
    """The number of ranks in each kind of parallelism. Their product is the world size."""

    pp: int  # layers
    dp_replicate: int  # batches, with a copy of the weights each
    dp_shard: int  # batches, and the weights
    cp: int  # sequences
    tp: int  # matrices

    @staticmethod
    def of(config: TitanConfig, world_size: int) -> Degrees:
        """Return the degrees as TorchTitan computes them.

        `data_parallel_shard_degree = -1` takes the ranks that are left. Raises ConfigError if the
        product is not the world size.
        """
        others = {key: getattr(config.parallelism, key) for key in _DEGREES}
        shard = others.pop(_SHARD)
        for key, degree in others.items():
            if degree < 1:
                raise ConfigError(f"= {degree}: it must be at least 1", key=f"parallelism.{key}")
        product = math.prod(others.values())
        if shard == -1:
            shard = world_size // product
        degrees = {**others, _SHARD: max(shard, 1)}
        if shard < 1 or product * shard != world_size:
            factors = {key: degree for key, degree in degrees.items() if degree > 1}
            shown = " x ".join(f"{key} {degree}" for key, degree in factors.items()) or "1"
            # The largest is most likely wrong, so the error shows its line.
            largest = max(factors or degrees, key=degrees.__getitem__)
            raise ConfigError(
                f"does not fit: {shown} needs {math.prod(degrees.values())} ranks, and there are "
                f"{world_size} procs. Change a degree, or the number of procs with --procs",
                key=f"parallelism.{largest}",
            )
        return Degrees(*(degrees[key] for key in _DEGREES))

    @property
    def data(self) -> int:
        """The number of different batches that ranks work on at the same time."""
        return self.dp_replicate * self.dp_shard

    def __str__(self) -> str:
        degrees = zip(_DEGREES.values(), dataclasses.astuple(self), strict=True)
        return (
            " x ".join(f"{name} {degree}" for name, degree in degrees if degree > 1) or "one rank"
        )


def check_config(config: TitanConfig, world_size: int) -> Degrees:
    """Check everything that can be known before a process starts; return the degrees.

    Raises ConfigError if a check fails.
    """
    titan.check(config)
    degrees = Degrees.of(config, world_size)
    is_ddp = degrees.dp_replicate > 1 and degrees.dp_shard * degrees.cp == 1
    if is_ddp and degrees.tp * degrees.pp > 1:
        raise ConfigError(
            f"= {degrees.dp_replicate}: TorchTitan has no DDP together with tensor or pipeline "
            "parallelism. Set it to 1: FSDP takes the ranks that are left",
            key="parallelism.data_parallel_replicate_degree",
        )
    batch, micro = config.training.global_batch_size, config.training.local_batch_size
    if batch > 0 and batch % (micro * degrees.data):
        raise ConfigError(
            f"= {batch} is no multiple of training.local_batch_size = {micro} times "
            f"{degrees.data} data-parallel ranks",
            key="training.global_batch_size",
        )
    divisor = degrees.tp * degrees.cp * 2
    if config.training.seq_len % divisor:
        raise ConfigError(
            f"= {config.training.seq_len} must be a multiple of {divisor}: twice "
            "tensor_parallel_degree times context_parallel_degree",
            key="training.seq_len",
        )
    return degrees


def value_at(config: TitanConfig, key: str) -> Any:
    """Return the value at a dotted key; None if the config has no such key.

    A data loader of the user's own may lack some of the usual keys.
    """
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name, None)
    return value


def section(config: TitanConfig, name: str) -> Any:
    """Return the section `validation` or `profiler`, whose name differs between versions."""
    return getattr(config, getattr(titan.keys, name))


def with_values(config: TitanConfig, **sections: Mapping[str, Any]) -> TitanConfig:
    """Return a changed copy of the config: `with_values(config, training={"steps": 5})`."""
    return with_keys(
        config,
        {
            f"{name}.{key}": value
            for name, values in sections.items()
            for key, value in values.items()
        },
    )


def in_folder(config: TitanConfig, folder: Path) -> TitanConfig:
    """Return the config with its outputs in ``folder``, unless it names an output folder itself."""
    default, output = titan.config_class(), titan.keys.output
    if value_at(config, output) == value_at(default, output):
        config = with_keys(config, {output: str(folder.resolve())})
        if config.checkpoint.folder == default.checkpoint.folder:
            config = with_values(config, checkpoint={"folder": "checkpoints/titan"})
    return titan.relocated(config)
