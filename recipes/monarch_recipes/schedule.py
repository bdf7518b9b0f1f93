"""The learning rate of a step, whether something is due after it, and how its batch is split.

All recipes use these, with any number of ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


def learning_rate_factor(step: int, num_warmup_steps: int, num_steps: int) -> float:
    """Return the factor on the learning rate at `step`, which counts from 0.

    It rises linearly to 1 over the warm-up, then falls along half a cosine to 0 at `num_steps`.
    """
    if step < num_warmup_steps:
        return (step + 1) / num_warmup_steps
    progress = (step - num_warmup_steps) / max(1, num_steps - num_warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def is_due(step: int, every: int) -> bool:
    """Return whether `step` is a multiple of `every`; 0 means never."""
    return every > 0 and step % every == 0


@dataclass(frozen=True)
class BatchSplit:
    """One rank's share of a global batch: `num_micro_batches` passes before the optimizer steps."""

    micro_batch_size: int
    num_micro_batches: int

    @property
    def per_rank(self) -> int:
        """The number of samples that a rank sees in one step."""
        return self.micro_batch_size * self.num_micro_batches


def split_batch(global_batch_size: int, world_size: int, max_micro_batch_size: int) -> BatchSplit:
    """Split a global batch evenly among the ranks, and each share into few equal micro-batches.

    A micro-batch has at most `max_micro_batch_size` samples. The global batch does not depend on
    the number of ranks, so the training does not either. Raises ValueError if the ranks cannot
    share the batch evenly.
    """
    per_rank, rest = divmod(global_batch_size, world_size)
    if rest or not per_rank:
        raise ValueError(
            f"a global batch of {global_batch_size} cannot be shared evenly by {world_size} ranks"
        )
    fewest = math.ceil(per_rank / max_micro_batch_size)
    num_micro_batches = next(n for n in range(fewest, per_rank + 1) if per_rank % n == 0)
    return BatchSplit(per_rank // num_micro_batches, num_micro_batches)
