"""The titan recipe's config is TorchTitan's: its sections, its TOML files, its flags.

    monarch run titan --config llama3_8b.toml training.steps=100 optimizer.lr=1e-4

The classes below are TorchTitan's own, but that some keys are marked as live: these may change
between two steps of a run. Four keys are ours: `max_restarts`, `fingerprint_every`, `shadow_every`
and `edit_patience_seconds` of `fault_tolerance`. `from_flags` reads what TorchTitan's command line
takes.
"""

# No `from __future__ import annotations`: TorchTitan looks at the types of its fields.

import contextlib
import dataclasses
import importlib
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from monarch.config_file import ConfigError, live

from .api import ConfigManager, JobConfig, train_spec
from .api import titan_config as titan


@dataclass
class OptimizerSection(titan.Optimizer):  # type: ignore[misc]
    """The learning rate is the highest of the schedule."""

    lr: float = live(titan.Optimizer.lr)
    weight_decay: float = live(titan.Optimizer.weight_decay)


@dataclass
class TrainingSection(titan.Training):  # type: ignore[misc]
    """Steps, batches, data."""

    max_norm: float | int = live(titan.Training.max_norm)


@dataclass
class MetricsSection(titan.Metrics):  # type: ignore[misc]
    """How often the ranks agree on their numbers."""

    log_freq: int = live(titan.Metrics.log_freq)

    def __post_init__(self) -> None:
        _check_at_least_1(self, "log_freq")


@dataclass
class CheckpointSection(titan.Checkpoint):  # type: ignore[misc]
    """When to save, and what to load."""

    interval: int = live(titan.Checkpoint.interval)

    def __post_init__(self) -> None:
        _check_at_least_1(self, "interval")


@dataclass
class ValidationSection(titan.Validation):  # type: ignore[misc]
    """When and how to validate."""

    freq: int = live(titan.Validation.freq)

    def __post_init__(self) -> None:
        _check_at_least_1(self, "freq")
        if self.steps != -1:
            _check_at_least_1(self, "steps", " (or -1: all there is)")


@dataclass
class FaultToleranceSection(titan.FaultTolerance):  # type: ignore[misc]
    """The settings for ranks that die or hang: all begin again from the last checkpoint."""

    max_restarts: int = 5
    """Restarts in a row without a new checkpoint; 0 ends the run with the first loss."""

    fingerprint_every: int = live(100)
    """Steps after which replicas of a weight are compared, with what the optimizer remembers of it;
    0 leaves it to new code, saves and resumes."""

    shadow_every: int = live(0)
    """Steps after which the state is copied into the host's memory, beside the next one: a rank
    that dies costs no more steps than that; 0 is never."""

    edit_patience_seconds: float | None = live(None)
    """A first step on new code that takes longer is told of; none is as
    MONARCH_EDIT_PATIENCE_SECONDS says, 30."""

    def __post_init__(self) -> None:
        for key in ("max_restarts", "fingerprint_every", "shadow_every"):
            if getattr(self, key) < 0:
                raise ConfigError("must be at least 0", key=key)


def _check_at_least_1(section: Any, key: str, besides: str = "") -> None:
    if getattr(section, key) < 1:
        raise ConfigError(f"must be at least 1{besides}", key=key)


@dataclass
class TitanConfig(JobConfig):  # type: ignore[misc]
    """All sections of TorchTitan's `JobConfig`; a `Trainer` takes it as one."""

    metrics: MetricsSection = field(default_factory=MetricsSection)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    training: TrainingSection = field(default_factory=TrainingSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    validation: ValidationSection = field(default_factory=ValidationSection)
    fault_tolerance: FaultToleranceSection = field(default_factory=FaultToleranceSection)

    KEYS_GONE: ClassVar[Mapping[str, str]] = {
        "fault_tolerance.save_before_edits": (
            "is gone: a step of new code that fails is put back in place, and nothing is saved for "
            "it. Take the key out"
        )
    }


def from_flags(flags: Sequence[str]) -> TitanConfig:
    """The config that TorchTitan makes of its flags, ``--job.config_file`` among them.

    Raises ConfigError where its command line would end the program.
    """
    text = io.StringIO()
    try:
        with contextlib.redirect_stderr(text), contextlib.redirect_stdout(text):
            config = ConfigManager(TitanConfig).parse_args(list(flags))
    except SystemExit:
        raise ConfigError(_plain(text.getvalue())) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"TorchTitan refuses its config: {error}") from error
    config.job.config_file = None  # It has been read.
    assert isinstance(config, TitanConfig)
    return config


def _plain(text: str) -> str:
    """Returns the text that tyro printed, without its frame and colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = (line.strip("│╭╮╰╯─ ") for line in text.splitlines())
    return "\n".join(line for line in lines if line)


@dataclass(frozen=True)
class Degrees:
    """How many ranks split what. Their product is the world size."""

    pp: int  # layers
    dp_replicate: int  # batches, with a copy of the weights each
    dp_shard: int  # batches, and the weights
    cp: int  # sequences
    tp: int  # matrices

    @staticmethod
    def of(config: TitanConfig, world_size: int) -> "Degrees":
        """The degrees as TorchTitan works them out: `data_parallel_shard_degree = -1` takes what is
        left.

        Raises ConfigError where they do not multiply to the world size.
        """
        wanted = config.parallelism
        given = {
            "pipeline_parallel_degree": wanted.pipeline_parallel_degree,
            "data_parallel_replicate_degree": wanted.data_parallel_replicate_degree,
            "data_parallel_shard_degree": wanted.data_parallel_shard_degree,
            "context_parallel_degree": wanted.context_parallel_degree,
            "tensor_parallel_degree": wanted.tensor_parallel_degree,
        }
        shard = given.pop("data_parallel_shard_degree")
        for key, degree in given.items():
            if degree < 1:
                raise ConfigError(f"= {degree}: it must be at least 1", key=f"parallelism.{key}")
        others = math.prod(given.values())
        if shard == -1:
            shard = world_size // others
        if shard < 1 or others * shard != world_size:
            given["data_parallel_shard_degree"] = max(shard, 1)
            factors = {key: degree for key, degree in given.items() if degree > 1}
            shown = " x ".join(f"{key} {degree}" for key, degree in factors.items()) or "1"
            # The largest is the likeliest to be wrong, and its line is worth showing.
            largest = max(factors or given, key=given.__getitem__)
            raise ConfigError(
                f"does not fit: {shown} needs {math.prod(given.values())} ranks, and there are "
                f"{world_size} procs. Change a degree, or the number of procs with --procs",
                key=f"parallelism.{largest}",
            )
        return Degrees(
            wanted.pipeline_parallel_degree,
            wanted.data_parallel_replicate_degree,
            shard,
            wanted.context_parallel_degree,
            wanted.tensor_parallel_degree,
        )

    @property
    def data(self) -> int:
        """How many different batches there are at once."""
        return self.dp_replicate * self.dp_shard

    def __str__(self) -> str:
        names = {
            "pp": "pipeline",
            "dp_replicate": "DDP",
            "dp_shard": "FSDP",
            "cp": "context",
            "tp": "tensor",
        }
        parts = [
            f"{names[key]} {degree}"
            for key, degree in dataclasses.asdict(self).items()
            if degree > 1
        ]
        return " x ".join(parts) or "one rank"


def check_config(config: TitanConfig, world_size: int) -> Degrees:
    """Checks all that can be known before a process starts. Raises ConfigError."""
    if config.job.config_file is not None:
        raise ConfigError(
            f"= {config.job.config_file!r} would not be read: give the file with "
            f"--config {config.job.config_file}",
            key="job.config_file",
        )
    if config.fault_tolerance.enable:
        raise ConfigError(
            "would be ignored: TorchTitan's Trainer has no part in TorchFT. The recipe "
            "fault_tolerant has replica groups; here fault_tolerance.max_restarts is what counts",
            key="fault_tolerance.enable",
        )
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


def look_up_model(config: TitanConfig) -> Any:
    """The `TrainSpec` that the config names, of the module that it has imported.

    Raises ConfigError with the names there are.
    """
    module = config.experimental.custom_import
    if module:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name not in (module, module.partition(".")[0]):
                raise
            raise ConfigError(
                f"= {module!r}: there is no such module. It is looked for in the workspace, in "
                "the folder that the run is started in, and among what is installed",
                key="experimental.custom_import",
            ) from None
    name, flavor = config.model.name, config.model.flavor
    try:
        spec = train_spec.get_train_spec(name)
    except ValueError as error:
        raise ConfigError(f"= {name!r}: {error}", key="model.name") from None
    if flavor not in spec.model_args:
        raise ConfigError(
            f"= {flavor!r} is none of {name}'s: {', '.join(spec.model_args)}",
            key="model.flavor",
        )
    return spec


def with_values(config: TitanConfig, **sections: Mapping[str, Any]) -> TitanConfig:
    """A changed copy: `with_values(config, training={"steps": 5})`."""
    replace: Any = dataclasses.replace
    changed: TitanConfig = replace(
        config,
        **{name: replace(getattr(config, name), **values) for name, values in sections.items()},
    )
    return changed


def in_folder(config: TitanConfig, folder: Path) -> TitanConfig:
    """The config with its outputs in a run's folder, where it does not name another."""
    if config.job.dump_folder == JobConfig().job.dump_folder:
        config = with_values(config, job={"dump_folder": str(folder.resolve())})
        if config.checkpoint.folder == JobConfig().checkpoint.folder:
            config = with_values(config, checkpoint={"folder": "checkpoints/titan"})
    if config.model.tokenizer_path is not None:  # TorchTitan's older name for it
        config = with_values(config, model={"hf_assets_path": config.model.tokenizer_path})
    return config


def register_model(name: str, spec: train_spec.TrainSpec) -> None:
    """Let configs say `model.name = NAME`. Again is fine: a module that changed is run again."""
    train_spec._extra_train_specs[name] = spec
