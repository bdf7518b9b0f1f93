"""Handwritten digits: 1,797 images of 8 by 8 pixels that come with scikit-learn.

They are few enough for a laptop's CPU, and real, so that held-out accuracy means something.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from monarch_recipes.samples import Data

NUM_CLASSES = 10


@dataclass(frozen=True)
class Samples:
    """Images, float32 (N, 1, 8, 8) from 0 to 1, and their labels, int64 (N,) from 0 to 9."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]


def load_digit_samples(seed: int, held_out_fraction: float = 0.2) -> Data:
    """Load the digits and split them at random; the same seed gives the same split.

    Raises ModuleNotFoundError if scikit-learn is not installed.
    """
    rows = torch.from_numpy(np.loadtxt(_file(), delimiter=","))
    images = (rows[:, :-1] / 16).to(torch.float32).view(-1, 1, 8, 8)
    labels = rows[:, -1].to(torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    num_held_out = round(len(labels) * held_out_fraction)
    held_out, train = order[:num_held_out], order[num_held_out:]
    return Data(Samples(images[train], labels[train]), Samples(images[held_out], labels[held_out]))


def _file() -> Path:
    """Return the path of scikit-learn's table of digits, without importing scikit-learn.

    Its import takes seconds. Raises ModuleNotFoundError if it is not installed.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the digits come with scikit-learn: pip install scikit-learn")
    return Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
