"""Messages from the ranks of a training to the client, and from the client to its caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from monarch_recipes.schedule import BatchSplit


@dataclass(frozen=True)
class TrainingPlan:
    """The result of a trainer's `setup`: how long the run is, and from which step it continues."""

    first_step: int  # steps done before, by the run that is resumed
    num_steps: int
    num_steps_per_epoch: int | None  # of a stream whose length is not known
    num_parameters: int
    batch: BatchSplit
    resumed_from: Path | None
    skipped: tuple[str, ...] = ()  # checkpoints that could not be used, and why
    data_taken: str = ""  # what was taken of a DataLoader, for a person
    why_not_nccl: str = ""  # where ranks have GPUs
    is_from_memory: bool = False  # it goes on from copies in the memory of the hosts


@dataclass(frozen=True)
class StepResult:
    """The result of one step. The fields before `rank` concern all ranks, others only this rank."""

    step: int  # counted from 1
    loss: float
    metrics: dict[str, float]  # on the samples of this step, in training mode
    samples_per_second: float  # over all ranks
    learning_rate: float
    grad_norm: float  # before clipping
    rank: int = 0
    busy_seconds: float = 0.0  # until it began to wait for the others
    generation: int = 0  # of the workspace whose code ran
    unused: tuple[str, ...] = ()  # the parameters that no rank used, which were not stepped
    # Digests of the state that ranks should share, by group of ranks; {} if it was not due.
    fingerprint: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DDPOutcome:
    """The end of a run: last step, held-out values, last checkpoint, number of restarts."""

    step: int
    held_out: dict[str, float] | None  # loss and metrics; None where it was stopped
    checkpoint: Path | None
    num_restarts: int


def measured(results: Sequence[StepResult]) -> dict[str, float]:
    """Return the numbers of a step for the run's record, from the results of all ranks."""
    first, busy = results[0], [result.busy_seconds for result in results]
    return {
        "loss": first.loss,
        **first.metrics,
        "samples_per_second": first.samples_per_second,
        "learning_rate": first.learning_rate,
        "grad_norm": first.grad_norm,
        "generation": min(result.generation for result in results),
        "rank_skew_seconds": max(busy) - min(busy),
    }
