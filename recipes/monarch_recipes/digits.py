"""Handwritten digits: 1,797 images of 8 by 8 pixels that come with scikit-learn.

Small enough for a laptop's CPU, and real enough that held-out accuracy means something.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits

__all__ = ["Digits", "Samples", "load_digit_samples"]

NUM_CLASSES = 10


@dataclass(frozen=True)
class Samples:
    """`images`: float32 (N, 1, 8, 8) in 0 to 1. `labels`: int64 (N,) in 0 to 9."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]


@dataclass(frozen=True)
class Digits:
    """The two halves of the data set, which share no image."""

    train: Samples
    held_out: Samples


def load_digit_samples(seed: int, held_out_fraction: float = 0.2) -> Digits:
    """Split the data set at random, the same way for the same seed."""
    source = load_digits()
    images = torch.tensor(source.data / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    labels = torch.tensor(source.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    num_held_out = round(len(labels) * held_out_fraction)
    held_out, train = order[:num_held_out], order[num_held_out:]
    return Digits(
        train=Samples(images[train], labels[train]),
        held_out=Samples(images[held_out], labels[held_out]),
    )
