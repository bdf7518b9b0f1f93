"""The config for TorchTitan 0.2.2: its sections, its TOML files, its flags.

The classes below are TorchTitan's, with some keys marked as live: these may change between two
steps of a run.
"""

# No `from __future__ import annotations`: TorchTitan looks at the types of its fields.

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from monarch.config_file import live

from .cpu import import_torchtitan
from .sections import (
    GONE,
    OwnFaultTolerance,
    check_at_least_1,
    check_validation_steps,
)

import_torchtitan()

# ruff: noqa: E402 - imports TorchTitan, which a CPU can do only now
from torchtitan import config as titan
from torchtitan.config import JobConfig


@dataclass
class OptimizerSection(titan.Optimizer):  # type: ignore[misc]
    """The optimizer. `lr` is the highest learning rate of the schedule."""

    lr: float = live(titan.Optimizer.lr)
    weight_decay: float = live(titan.Optimizer.weight_decay)


@dataclass
class TrainingSection(titan.Training):  # type: ignore[misc]
    """Steps, batches and data."""

    max_norm: float | int = live(titan.Training.max_norm)


@dataclass
class MetricsSection(titan.Metrics):  # type: ignore[misc]
    """How often metrics are measured."""

    log_freq: int = live(titan.Metrics.log_freq)

    def __post_init__(self) -> None:
        check_at_least_1(self, "log_freq")


@dataclass
class CheckpointSection(titan.Checkpoint):  # type: ignore[misc]
    """When to save, and what to load."""

    interval: int = live(titan.Checkpoint.interval)

    def __post_init__(self) -> None:
        check_at_least_1(self, "interval")


@dataclass
class ValidationSection(titan.Validation):  # type: ignore[misc]
    """When and how to validate."""

    freq: int = live(titan.Validation.freq)

    def __post_init__(self) -> None:
        check_at_least_1(self, "freq")
        check_validation_steps(self)


@dataclass
class FaultToleranceSection(OwnFaultTolerance, titan.FaultTolerance):  # type: ignore[misc]
    """The settings for ranks that die or hang: all ranks start again from the last checkpoint."""


@dataclass
class TitanConfig(JobConfig):  # type: ignore[misc]
    """All sections of TorchTitan's `JobConfig`, for its `Trainer`."""

    metrics: MetricsSection = field(default_factory=MetricsSection)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    training: TrainingSection = field(default_factory=TrainingSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    validation: ValidationSection = field(default_factory=ValidationSection)
    fault_tolerance: FaultToleranceSection = field(default_factory=FaultToleranceSection)

    KEYS_GONE: ClassVar[Mapping[str, str]] = GONE
