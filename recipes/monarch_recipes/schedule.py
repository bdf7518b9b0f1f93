"""A step of training by its number: how fast it learns, and which samples it sees.

Computed here and nowhere else, so that every recipe and every number of ranks agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


def learning_rate_factor(step: int, num_warmup_steps: int, num_steps: int) -> float:
    """Linear warm-up to 1, then half a cosine down to 0 at `num_steps`. `step` counts from 0."""
    if step < num_warmup_steps:
        return (step + 1) / num_warmup_steps
    progress = (step - num_warmup_steps) / max(1, num_steps - num_warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def is_due(step: int, every: int) -> bool:
    """Whether something is done after `step`; 0 is never."""
    return every > 0 and step % every == 0


@dataclass(frozen=True)
class BatchSplit:
    """One rank's share of a global batch: `num_micro_batches` passes before the optimizer steps."""

    micro_batch_size: int
    num_micro_batches: int

    @property
    def per_rank(self) -> int:
        """Samples that a rank sees in one step."""
        return self.micro_batch_size * self.num_micro_batches


def split_batch(global_batch_size: int, world_size: int, max_micro_batch_size: int) -> BatchSplit:
    """Share a global batch out evenly, in as few equal micro-batches as memory allows.

    The global batch stays the same whatever the number of ranks, and with it the training; only
    the accumulation changes. Raises ValueError when the ranks cannot share it evenly.
    """
    per_rank, rest = divmod(global_batch_size, world_size)
    if rest or not per_rank:
        raise ValueError(
            f"a global batch of {global_batch_size} cannot be shared evenly by {world_size} ranks"
        )
    fewest = math.ceil(per_rank / max_micro_batch_size)
    num_micro_batches = next(n for n in range(fewest, per_rank + 1) if per_rank % n == 0)
    return BatchSplit(per_rank // num_micro_batches, num_micro_batches)


@dataclass(frozen=True)
class Position:
    """The place in the data at which a step begins: the epoch, and the number of its steps that are
    done."""

    epoch: int
    step_in_epoch: int


def position_of(step: int, num_steps_per_epoch: int) -> Position:
    """The position of `step`, counted from 0 over the whole run."""
    return Position(*divmod(step, num_steps_per_epoch))
