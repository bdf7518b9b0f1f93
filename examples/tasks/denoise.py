"""No classification: an autoencoder takes the noise off handwritten digits.

    cd examples/tasks
    monarch run ddp task=denoise num_epochs=10 extras.patience=3
    monarch run fault_tolerant task=denoise

There is no accuracy here. The run reports the loss, of training and held out, and how much of the
noise is left, which `evaluate` measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from monarch_recipes.digits import load_digit_samples
from monarch_recipes.samples import Data
from monarch_recipes.tally import Weighted

NOISE = 0.3


class Noisy:
    """Pairs of an image with noise and without. The noise differs each time."""

    def __init__(self, images: torch.Tensor) -> None:
        self.images = images.flatten(1)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index]
        return image + NOISE * torch.randn_like(image), image


def load_data(config: Any) -> Data:
    digits = load_digit_samples(config.data_seed, config.held_out_fraction)
    return Data(Noisy(digits.train.images), Noisy(digits.held_out.images))


def build_model(config: Any) -> nn.Module:
    """Return a model of images (N, 64) to images, through 24 numbers.

    BatchNorm's statistics are averaged over all ranks.
    """
    return nn.Sequential(
        nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 24),
        nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, 64),
    )  # fmt: skip


def compute_loss(restored: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(restored, images)


def evaluate(model: nn.Module, batches: Iterable[Any]) -> dict[str, Weighted]:
    """Return the measures of this rank's share of the samples, each as a sum and its weight.

    The recipe adds up sums and weights over the ranks, and divides the totals.
    """
    error, noise, num_images = 0.0, 0.0, 0
    for noisy, images in batches:
        error += float((model(noisy) - images).square().mean(1).sum())
        noise += float((noisy - images).square().mean(1).sum())
        num_images += len(images)
    return {"loss": (error, num_images), "noise_left": (error, noise)}


def should_stop(history: Sequence[Mapping[str, float]]) -> str:
    """Return why the run should stop after this evaluation; "" if it should not."""
    return "a tenth of the noise is left" if history[-1]["noise_left"] < 0.1 else ""
