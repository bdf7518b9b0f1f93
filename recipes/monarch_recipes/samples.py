"""Which samples a rank sees in a step, and how they reach its device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import DistributedSampler, default_collate

from monarch.errors import MonarchError
from monarch_recipes.schedule import position_of

__all__ = ["Data", "SampleError", "SampleOrder", "TooFewSamples", "batches"]


class Data(NamedTuple):
    """Two data sets, with `len(data)` and `data[index] -> (input, label)`."""

    train: Any
    held_out: Any


class SampleError(RuntimeError):
    """A sample could not be read; the message says by whom, and which."""


class TooFewSamples(MonarchError):
    """A step wants more than there are."""


class SampleOrder:
    """Deals the samples out to the ranks, in another order in each epoch.

    What a rank gets depends on the step alone: a run that is resumed goes on in the middle of its
    epoch. All ranks together see the same samples in a step, however many share it.
    """

    def __init__(
        self, num_samples: int, per_rank: int, rank: int, world_size: int, seed: int
    ) -> None:
        self.num_steps_per_epoch = num_samples // (per_rank * world_size)
        if not self.num_steps_per_epoch:
            raise TooFewSamples(
                f"{world_size} ranks with {per_rank} samples each want more than "
                f"the {num_samples} samples there are"
            )
        self._per_rank = per_rank
        self._sampler: DistributedSampler[int] = DistributedSampler(
            range(num_samples), world_size, rank, shuffle=True, seed=seed, drop_last=True
        )
        self._epoch = -1
        self._indices: list[int] = []

    def of(self, step: int) -> list[int]:
        """This rank's samples of `step`, counted from 0 over the whole run."""
        position = position_of(step, self.num_steps_per_epoch)
        if position.epoch != self._epoch:
            self._epoch = position.epoch
            self._sampler.set_epoch(position.epoch)
            self._indices = list(self._sampler)
        start = position.step_in_epoch * self._per_rank
        return self._indices[start : start + self._per_rank]


def batches(
    data: Any, indices: Sequence[int], size: int, device: torch.device, reader: str
) -> Iterator[list[torch.Tensor]]:
    """These samples on the device, `size` at a time. Raises SampleError, which names `reader`."""
    for first in range(0, len(indices), size):
        samples = []
        for index in indices[first : first + size]:
            try:
                samples.append(data[index])
            except Exception as error:
                raise SampleError(
                    f"{reader} could not read sample {index}: {type(error).__name__}: {error}"
                ) from error
        yield [tensor.to(device) for tensor in default_collate(samples)]
