"""Texts of one or ten letters, padded, with a loss over letters: for the tests of weights."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from monarch_recipes.samples import Data
from monarch_recipes.tally import Weighted

LONGEST, NUM_LETTERS, MASKED = 10, 7, -100


class Texts:
    """Half of them are one letter long."""

    def __init__(self, num_texts: int) -> None:
        generator = torch.Generator().manual_seed(3)
        self.letters = torch.randint(0, NUM_LETTERS, (num_texts, LONGEST), generator=generator)
        self.labels = torch.randint(0, NUM_LETTERS, (num_texts, LONGEST), generator=generator)
        lengths = torch.where(torch.rand(num_texts, generator=generator) < 0.5, 1, LONGEST)
        self.labels[torch.arange(LONGEST) >= lengths[:, None]] = MASKED

    def __len__(self) -> int:
        return len(self.letters)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.letters[index], self.labels[index]


def load_data(config: object) -> Data:
    return Data(Texts(96), Texts(15))


def build_model(config: object) -> nn.Module:
    return nn.Sequential(nn.Embedding(NUM_LETTERS, 5), nn.Linear(5, NUM_LETTERS))


def compute_loss(logits: torch.Tensor, labels: torch.Tensor) -> Weighted:
    flat = logits.reshape(-1, NUM_LETTERS), labels.reshape(-1)
    return functional.cross_entropy(*flat, reduction="sum"), (labels != MASKED).sum()


def metrics(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, Weighted]:
    counts = labels != MASKED
    return {"letters_right": ((logits.argmax(-1) == labels)[counts].sum(), counts.sum())}
